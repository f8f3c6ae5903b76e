"""Sweep: every arm over ubatch, depth or prompt, the ceiling and the limit, and where two arms cross."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pandas as pd
import streamlit as st

from dashboard import address, show
from dashboard.choice import Choice, current
from dashboard.figures.sweep import AXIS_NAMES, AXIS_TITLES, axis_title, change_figure, sweep_figure
from dashboard.text import SIGNS, escape_markdown
from executor.units import format_value
from profiler.metrics import FIGURES
from profiler.metrics.passes import CellKey
from profiler.report.sweep import (
    DEPTH,
    PROMPT,
    UBATCH,
    Crossover,
    axes_of,
    cell_with_rows,
    crossover,
    improvement_grid,
    judged_names,
    one_ubatch,
    rows_of_workload,
    rows_over,
    sweep_figures,
)

_SHOWN: Final = ("ttft_ns", "prefill_tokens_per_s", "decode_tokens_per_s", "wall_ns")
_MOST_SEGMENTS: Final = 4


def main(choice: Choice) -> None:
    show.head("Sweep", choice)
    if choice.sizes is None:
        show.nothing(
            "This capture has no passes, so there is nothing to sweep over.",
            "Measure several sizes with `hprof run -ub 64-1024*2 -d 0,4096`.",
        )
        return
    tables = {name: sweep_figures(choice.report.cells, name) for name in _SHOWN}
    known = [name for name in judged_names() if not tables[name].empty]
    known = known or [name for name in ("wall_ns",) if not tables[name].empty]
    if not known:
        show.nothing("The passes of this capture say no times.")
        return
    with st.container(horizontal=True, gap="medium"):
        name = address.segments("Figure", known, "figure", lambda name: FIGURES[name].headline.partition(",")[0])
        rows = tables[name]
        sizes = cell_with_rows(rows[rows["arm"].isin(choice.arms)], choice.sizes)
        axis, shown, fixed = choose_axis(rows, sizes)
    if sizes != choice.sizes.key:
        show.sentences([f"The chosen cell does not have this figure; {workload(sizes)} is shown."])
    lines(choice, shown, name, axis, fixed)
    if choice.b is not None:
        changes(choice, rows_over(rows, axis, sizes) if axis == PROMPT else rows_of_workload(rows, sizes), name, axis)


def lines(choice: Choice, shown: pd.DataFrame, name: str, axis: str, fixed: str) -> None:
    arms = list(dict.fromkeys(arm for cell in choice.report.cells for arm in cell.arms))
    found = crossovers(choice, one_ubatch(shown) if axis == PROMPT else shown) if axis != DEPTH else {}
    compared = [arm for arm in arms if arm in choice.arms] or arms[:1]
    ceilings = [arm.name for arm in choice.capture.manifest.arms if arm.is_resident]
    for at in found.values():
        st.markdown(escape_markdown(crossover_sentence(choice.b_as_subject, choice.a or "", at, axis)))
    show.figure(
        sweep_figure(shown, name, axis, arms, limits_of=compared, crossovers=found, ceilings=ceilings),
        alt=f"{axis_title(name)} over {AXIS_TITLES[axis]}, a line an arm{fixed}",
        key="lines",
        table=readable(shown, name),
        name="sweep",
    )
    if len(shown[axis].dropna().unique()) < 2:
        st.caption("One size was measured; a line needs more: `hprof run -ub 64-1024*2 -d 0,4096`.")
    elif axis == PROMPT and (shown["n_prompt"] <= shown["n_ubatch"]).all():
        st.caption("Every prompt fits into one ubatch, so its length is what goes through the layers together.")


def choose_axis(rows: pd.DataFrame, sizes: CellKey) -> tuple[str, pd.DataFrame, str]:
    """What runs along the axis, the rows at the chosen cell's other size, and that size in words."""
    axes = axes_of(rows, sizes)
    axis = axes[0] if len(axes) == 1 else address.segments("Axis", axes, "axis", AXIS_NAMES.__getitem__)
    other = UBATCH if axis == DEPTH else DEPTH
    value = getattr(sizes, other)
    values = sorted(rows_over(rows, axis, sizes, free=other)[other].dropna().unique().tolist())
    if len(values) > 1:
        label = {DEPTH: "At depth", UBATCH: "At ubatch"}[other]
        first = values.index(value) if value in values else 0
        choose = address.segments if len(values) <= _MOST_SEGMENTS else address.select  # a phone has no room for more
        value = choose(label, [int(v) for v in values], "at", lambda v: f"{v:,}", first=first)
    shown = rows_over(rows, axis, replace(sizes, **{other: value}))
    return axis, shown, f", {other.removeprefix('n_')} {value:,.0f}" if value is not None else ""


def workload(sizes: CellKey) -> str:
    """Its prompt and generated tokens in words."""
    parts = [
        f"a prompt of {sizes.n_prompt:,}" if sizes.n_prompt else "",
        f"{sizes.n_gen:,} generated" if sizes.n_gen else "",
    ]
    return " with ".join(part for part in parts if part) + " tokens"


def crossovers(choice: Choice, shown: pd.DataFrame) -> dict[str, Crossover]:
    """Where arm B crosses A."""
    found = {arm: crossover(shown[shown["arm"] == arm]) for arm in choice.arms[1:]}
    return {arm: at for arm, at in found.items() if at is not None}


def crossover_sentence(who: str, baseline: str, at: Crossover, axis: str) -> str:
    told = f"{who} and {baseline} take the same time at a ubatch {at.in_words(axis)}."
    return f"{told} Each prompt is one ubatch." if axis == PROMPT else told


def changes(choice: Choice, rows: pd.DataFrame, name: str, axis: str) -> None:
    st.subheader(f"{escape_markdown(choice.b)} against {escape_markdown(choice.a)}", anchor=False)
    mine = rows[rows["arm"] == choice.b]
    across = PROMPT if axis == PROMPT else UBATCH
    mine = mine.assign(n_ubatch=mine[across])
    grid, verdicts = improvement_grid(mine, lower_is_better=FIGURES[name].better == "lower")
    if grid.empty:
        show.nothing(f"{choice.b} and {choice.a} were not measured side by side.")
        return
    table = grid.mul(100).round(2).rename_axis("depth").reset_index()
    word = across.removeprefix("n_")
    table.columns = pd.Index(["depth", *(f"{word} {size:,.0f}, %" for size in grid.columns)])
    show.figure(
        change_figure(grid, verdicts, across),
        alt=f"how many per cent better {choice.b} is than {choice.a} in each cell; negative is worse",
        key="changes",
        table=table,
        name="changes",
    )
    signs = ", ".join(f"{sign} {verdict}" for verdict, sign in SIGNS.items())
    st.caption(f"In per cent: positive (blue) is better for B, negative (orange) worse, grey not certain. {signs}.")


def readable(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """The drawn figures as text."""
    unit = FIGURES[name].unit
    sizes = {"prompt": "n_prompt", "ubatch": "n_ubatch", "depth": "n_depth"}
    told = pd.DataFrame({"arm": rows["arm"], **{title: rows[column] for title, column in sizes.items()}})
    for column, title in (("median", "median"), ("low", "low"), ("high", "high"), ("limit", "max(C, T) limit")):
        told[title] = rows[column].map(lambda value: format_value(value, unit), na_action="ignore")
    return told.assign(ratio=rows["ratio"].round(4), verdict=rows["verdict"])


main(current())
