"""Layers: compute C and copy T of every layer, which of them are copy-bound, and where prefetch pays."""

from __future__ import annotations

from typing import Final

import pandas as pd
import streamlit as st

from dashboard import address, load, passes, show
from dashboard.choice import Choice, current
from dashboard.empty_pages import NO_LAYERS
from dashboard.figures.time import layer_figure, margin_figure
from dashboard.table_columns import in_one_unit
from dashboard.text import escape_markdown
from executor.units import format_share
from profiler.metrics.layers import margin_by_layer, paying_share, prefetch_margin, typical_layers

_MAX_LAYERS: Final = 256  # drawn, and in the tables


def main(choice: Choice) -> None:
    show.head("Which layers wait for their copies?", choice)
    rows = measured(choice) if choice.sizes is not None else pd.DataFrame()
    if rows.empty:
        show.nothing(
            NO_LAYERS,
            "`hprof run` records it; other tools can with NVTX ranges (docs/importing.md).",
        )
        return
    arm, ubatch = controls(choice, rows)
    here = rows[(rows["arm"] == arm) & (rows["ubatch"] == ubatch)]
    bounds(here, arm, ubatch)
    phase = here["phase"].iloc[0]
    condition(choice, rows[rows["phase"] == phase] if pd.notna(phase) else rows, arm, phase)


def bounds(here: pd.DataFrame, arm: str, ubatch: int) -> None:
    """C against T of every layer of one ubatch."""
    layers = typical_layers(here)
    bound = int(layers["copy_bound"].sum())
    st.markdown(
        f"**{bound} of {len(layers)} layers are copy-bound** in this ubatch of {escape_markdown(arm)}: "
        "their copy T takes longer than their compute C."
    )
    if len(layers) > _MAX_LAYERS:
        st.caption(f"The first {_MAX_LAYERS} layers are shown.")
        layers = layers.iloc[:_MAX_LAYERS]
    show.figure(
        layer_figure(layers),
        alt=f"compute C and copy T of each layer of {arm} in ubatch {ubatch}: T is longer in {bound} of {len(layers)}",
        key="layers",
        table=readable(layers),
        name="layers",
    )


def measured(choice: Choice) -> pd.DataFrame:
    """`layer_figures` of the passes of this cell, with their arm."""
    found = load.figures_of_layers(choice.found)
    arms = passes.passes_of_cell(choice).set_index("pass_id")["arm"]
    mine = found[found["pass_id"].isin(arms.index)]
    return mine.assign(arm=mine["pass_id"].map(arms))


def controls(choice: Choice, rows: pd.DataFrame) -> tuple[str, int]:
    with st.container(horizontal=True, gap="medium"):
        arms = [arm for arm in choice.arms if (rows["arm"] == arm).any()]
        arm = address.segments("Arm", arms, "arm", escape_markdown)
        mine = rows[rows["arm"] == arm]
        phases = mine.groupby("ubatch")["phase"].first()
        ubatches = [int(number) for number in phases.index]
        names = {number: f"{number} ({phases.get(number) or 'ubatch'})" for number in ubatches}
        ubatch = address.select("Ubatch", ubatches, "ubatch", names.__getitem__, width=220)
    return arm, ubatch


def readable(layers: pd.DataFrame) -> pd.DataFrame:
    titles = {
        "compute_ns": "C",
        "copy_ns": "T",
        "hidden_ns": "hidden",
        "exposed_ns": "exposed",
        "wait_ns": "waited",
        "next_whole_copy_ns": "next layer's whole copy T'",
    }
    times = in_one_unit({title: layers[column] for column, title in titles.items()}, "ns")
    told = pd.DataFrame({"layer": layers["layer"].astype(int), **times})
    return told.assign(**{"bound by": layers["copy_bound"].map({True: "copy", False: "compute"})})


def copies_ahead(choice: Choice, arm: str) -> bool:
    """Whether the arm copied on a stream of its own, as far as the manifest says."""
    return any(one.effective_options.get("streams_ahead") is True for one in choice.arms_of_cell if one.name == arm)


def condition(choice: Choice, rows: pd.DataFrame, arm: str, phase: str | None) -> None:
    """C + T > T': prefetch of the next layer's whole weights pays where compute and the copy in line hide it."""
    st.header("In which layers would prefetch pay: C + T > T'?", anchor=False)
    mine = rows[rows["arm"] == arm]
    grid = prefetch_margin(mine)
    share = paying_share(grid)
    if share is None:
        show.nothing("The condition needs the copies of two adjacent layers in one ubatch; this arm has none.")
        return
    if copies_ahead(choice, arm):
        show.sentences([f"{arm} copies ahead, so its T is no copy in line: read this on an arm such as off."])
    during = f", over all ubatches of {escape_markdown(phase)}" if pd.notna(phase) else ""
    st.markdown(
        f"It holds for **{format_share(share)}** of the layers of {escape_markdown(arm)} before one that "
        f"is copied{during}."
    )
    margins(grid)


def margins(grid: pd.DataFrame) -> None:
    """What C + T leaves over T' in each layer."""
    if len(grid.columns) > _MAX_LAYERS:
        st.caption(f"The first {_MAX_LAYERS} layers are shown.")
        grid = grid.iloc[:, :_MAX_LAYERS]
    found = margin_by_layer(grid)
    columns = in_one_unit({f"layer {layer}": grid[layer] for layer in grid.columns}, "ns")
    pays = int((found["median"] > 0).sum())
    show.figure(
        margin_figure(found),
        alt=f"what C + T leaves over the next layer's whole copy T', by layer, the median ubatch: above 0, so that "
        f"prefetch pays, in {pays} of {len(found)} layers",
        key="margin",
        table=pd.DataFrame(columns).rename_axis("ubatch").reset_index(),
        name="prefetch-condition",
    )
    st.caption(
        "C: the layer's compute. T: its copy as this arm made it (selective where it was). T': the whole copy of the "
        "next layer, which prefetch would have to hide: above 0 it pays. Read it on an arm that copies in line, such "
        "as off."
    )


main(current())
