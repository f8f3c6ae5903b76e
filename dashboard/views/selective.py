"""Selective copy: what it saves, what prefetch gives up, and how the router makes it so."""

from __future__ import annotations

from typing import Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import streamlit as st

from dashboard import load, passes, show
from dashboard.choice import Choice, current
from dashboard.empty_pages import NO_ROUTER, NO_UBATCHES
from dashboard.figures.selective import bytes_figure, coverage_figure, distinct_figure, idle_tokens, overlap_figure
from dashboard.table_columns import in_one_unit
from dashboard.text import escape_markdown
from executor.units import format_bytes, format_count, format_share
from profiler.metrics.experts import (
    adjacent_layer_jaccard,
    distinct_by_ubatch,
    expert_heat,
    heat_by_layer,
    hottest_coverage,
    spread_by_layer,
    typical_use,
    uniform_curve,
)
from profiler.metrics.layers import saved_share, typical_ubatches
from profiler.metrics.passes import measured_passes
from profiler.report.cells import ArmFigures

_MOST_USES: Final = 0.8  # of a layer's uses


def main(choice: Choice) -> None:
    show.head("What does the selective copy save?", choice)
    experts = choice.capture.table("experts") if choice.sizes is not None else None
    if choice.sizes is None:
        show.nothing(NO_UBATCHES)
        return
    bytes_moved(choice)
    of_cell = pa.array(passes.passes_of_cell(choice)["pass_id"].tolist(), pa.int32())
    chosen = experts.filter(pc.is_in(experts["pass_id"], of_cell)) if experts is not None else None
    if chosen is None or chosen.num_rows == 0:
        show.nothing(
            NO_ROUTER,
            "Measure a mixture of experts, for example `hprof run -m tiny-moe`.",
        )
        return
    if experts is not None:
        measured = measured_passes(choice.capture.passes).dropna(subset="pass_id").set_index("pass_id")["arm"]
        ids = pa.array(measured.index.astype("int32"), pa.int32())
        shares(experts.filter(pc.is_in(experts["pass_id"], ids)), measured)
    if not pc.max(pc.binary_length(chosen["used"])).as_py():
        show.nothing("Which experts were chosen was not recorded, only how many.")
        return
    heat(chosen)
    overlap(chosen)


def bytes_moved(choice: Choice) -> None:
    """Per ubatch, medians over the passes of each arm."""
    st.header("Bytes moved, ubatch by ubatch", anchor=False)
    found = load.figures_of_ubatches(choice.found)
    ids = passes.passes_of_cell(choice).set_index("pass_id")["arm"]
    mine = found[found["pass_id"].isin(ids.index)].assign(arm=lambda frame: frame["pass_id"].map(ids))
    arms = list(choice.sizes.arms) if choice.sizes else choice.arms
    by_arm = {arm: typical_ubatches(mine[mine["arm"] == arm]) for arm in choice.arms}
    if mine.empty:
        show.nothing("No copy of these passes says which ubatch it belongs to.")
        return
    if mine["bytes_h2d"].isna().all():
        show.nothing("The source recorded no copies of these passes.")
        return
    dividing = {arm.name for arm in choice.capture.manifest.arms if arm.traits is not None and arm.traits.divides}
    for arm in by_arm:
        say_moved(arm, choice.cell.arms[arm], divides=arm in dividing)
    idle = idle_tokens(by_arm)
    table = pd.concat([rows.assign(arm=arm) for arm, rows in by_arm.items()], ignore_index=True)
    moved = {"copied": "bytes_h2d", "whole copies": "whole_bytes", "saved": "selective_saving_bytes"}
    sizes = in_one_unit({title: table[column] for title, column in moved.items()}, "bytes")
    show.figure(
        bytes_figure({arm: rows[~rows["ubatch"].isin(idle)] for arm, rows in by_arm.items()}, arms),
        alt="bytes that each ubatch moved from host to device, per arm, against what whole copies would have moved",
        key="bytes",
        table=table[["arm", "ubatch", "phase", "n_tokens"]].assign(**sizes),
        name="bytes-by-ubatch",
    )
    if idle:
        st.caption(f"Not drawn: {format_count(len(idle), 'token')} of decode, which copied no weights.")


def say_moved(arm: str, told: ArmFigures, *, divides: bool) -> None:
    """The report's bytes of a whole pass, of which no sum over ubatches of medians is the median. divides: it shares
    experts with the CPU, whose part needs no copy at all."""
    moved, saved = told.median("bytes_h2d"), told.median("selective_saving_bytes")
    if moved is None:
        return
    less = ""
    if saved is not None:
        share = saved_share(moved, saved)
        less = f", {format_bytes(saved)} ({format_share(share)}) less than whole copies" if share else ": whole copies"
        less += ", what the CPU computed in their place among it" if divides and share else ""
    st.markdown(f"**{escape_markdown(arm)}** moved {escape_markdown(f'{format_bytes(moved)}{less}')}.")


def shares(experts: pa.Table, arm_of: pd.Series[str]) -> None:
    """Over every ubatch size of the measured passes: the router's choice does not depend on the arm, what crosses the
    bus does. arm_of: by pass."""
    st.header("Experts touched", anchor=False)
    rows = distinct_by_ubatch(experts)
    use = typical_use(rows)
    sizes = ["n_tokens", "phase"]
    told = {name.replace("_", " "): use[name] for name in ("distinct_share", "distinct_least", "distinct_most")}
    for arm, mine in rows.groupby(rows["pass_id"].map(arm_of), sort=False):
        served = use[sizes].merge(typical_use(mine), on=sizes, how="left")
        told[f"copied by {arm}"] = served["copied_share"]
        if served["cache_hit_rate"].notna().any():
            told[f"cache hits of {arm}"] = served["cache_hit_rate"]
    table = use[sizes].assign(**in_one_unit(told, "share"))
    curve = uniform_curve(experts)
    show.figure(
        distinct_figure(use, curve),
        alt="share of the experts that a ubatch touches over its tokens, measured and with equally likely experts",
        key="distinct",
        table=table,
        name="distinct-share",
    )
    favourites = (
        "Real routers have favourites, so they touch fewer than chance would."
        if len(curve)
        else "What chance would touch is not drawn: no ubatch of one token says how many experts a token uses."
    )
    st.caption(f"Bars span the ubatches of a size. {favourites}")


def heat(experts: pa.Table) -> None:
    st.header("Would keeping a few hot experts be enough?", anchor=False)
    layers, used = expert_heat(experts)
    coverage = hottest_coverage(used)
    if coverage.empty:
        return
    half = int((coverage["median"] >= _MOST_USES).to_numpy().argmax()) + 1
    st.markdown(
        f"The **{half} hottest of {len(coverage)} experts** serve {format_share(_MOST_USES)} of a median layer's uses."
    )
    show.figure(
        coverage_figure(coverage),
        alt=f"share of a layer's uses that its hottest experts serve: {half} of {len(coverage)} serve "
        f"{format_share(_MOST_USES)}",
        key="coverage",
        table=pd.DataFrame(in_one_unit({str(name): coverage[name] for name in coverage}, "share")).reset_index(),
        name="hottest-experts",
    )
    titles = {
        "n_used": "experts",
        "n_never": "never used",
        "n_always": "used in every ubatch",
        "most_popular": "most popular expert",
    }
    with st.expander("Each layer's experts"):
        table = heat_by_layer(layers, used).rename(columns=titles)
        show.table(table, alt="experts that each layer uses", key="heat", name="experts-by-layer")


def overlap(experts: pa.Table) -> None:
    jaccard = adjacent_layer_jaccard(experts)
    if jaccard.empty:
        return
    st.header("Do adjacent layers use the same experts?", anchor=False)
    spread = spread_by_layer(jaccard)
    shares = in_one_unit({"median overlap": spread["median"], "low": spread["low"], "high": spread["high"]}, "share")
    show.figure(
        overlap_figure(spread),
        alt="overlap (common / either) of each layer's experts with the layer before, in the same ubatch",
        key="overlap",
        table=spread[["phase", "layer"]].assign(**shares),
        name="adjacent-layer-overlap",
    )
    st.caption(
        "Experts in both layers / experts in either, by number: the median over the ubatches, and the middle half of "
        "them as whiskers. Where it is low, one layer's choice says little about the next one's."
    )


main(current())
