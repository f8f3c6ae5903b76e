"""Sweep: every arm over ubatch and depth, the ceiling and the limit, and where two arms cross."""

from __future__ import annotations

from typing import Final

import pandas as pd
import streamlit as st

from dashboard import address, show
from dashboard.choice import Choice, current
from dashboard.figures.sweep import AXIS_TITLES, FIGURE_TITLES, change_figure, sweep_figure
from dashboard.text import plain, subject
from profiler.metrics import FIGURES
from profiler.metrics.sweep import Crossover, crossover, improvement_grid, judged_names, sweep_figures
from profiler.report.units import format_value

_LABELS: Final = {"ttft_ns": "First token", "prefill_tokens_per_s": "Prefill", "decode_tokens_per_s": "Decode"}


def main(choice: Choice) -> None:
    show.head("Sweep", choice)
    if choice.sizes is None:
        show.nothing(
            "This capture has no passes, so there is nothing to sweep over.",
            "Measure several sizes with `hprof run -ub 64-1024*2 -d 0,4096`.",
        )
        return
    tables = {name: sweep_figures(choice.report.cells, name) for name in judged_names()}
    known = [name for name in tables if not tables[name].empty]
    if not known:
        show.nothing("The passes of this capture say no times.")
        return
    with st.container(horizontal=True, gap="medium"):
        name = address.segments("Figure", known, "figure", _LABELS.__getitem__)
        rows, notes = of_one_workload(choice, tables[name])
        axis, shown, fixed = choose_axis(choice, rows)
    show.sentences(notes)
    lines(choice, shown, name, axis, fixed)
    if choice.b is not None:
        changes(choice, rows, name)


def lines(choice: Choice, shown: pd.DataFrame, name: str, axis: str, fixed: str) -> None:
    arms = list(dict.fromkeys(arm for cell in choice.report.cells for arm in cell.arms))
    found = crossovers(choice, shown) if axis == "n_ubatch" else {}
    compared = [arm for arm in arms if arm in choice.arms] or arms[:1]
    show.figure(
        sweep_figure(shown, name, axis, arms, limits_of=compared, crossovers=found),
        alt=f"{FIGURE_TITLES[name]} over {AXIS_TITLES[axis]}, a line an arm{fixed}",
        key="lines",
        table=readable(shown, name),
        name="sweep",
    )
    for arm, at in found.items():
        st.markdown(plain(crossover_sentence(arm, choice.a or "", at)))
    if len(shown[axis].dropna().unique()) < 2:
        st.caption("One size was measured; a line needs more: `hprof run -ub 64-1024*2 -d 0,4096`.")


def choose_axis(choice: Choice, rows: pd.DataFrame) -> tuple[str, pd.DataFrame, str]:
    """What runs along the axis, the rows at the chosen cell's other size, and that size in words."""
    axes = [axis for axis in ("n_ubatch", "n_depth") if rows[axis].nunique() > 1] or ["n_ubatch"]
    axis = axes[0]
    if len(axes) > 1:
        axis = address.segments("Axis", axes, "axis", {"n_ubatch": "over ubatch", "n_depth": "over depth"}.__getitem__)
    other = "n_depth" if axis == "n_ubatch" else "n_ubatch"
    values = sorted(rows[other].dropna().unique().tolist())
    value = getattr(choice.sizes, other)
    if len(values) > 1:
        label = {"n_depth": "At depth", "n_ubatch": "At ubatch"}[other]
        first = values.index(value) if value in values else 0
        value = address.segments(label, [int(v) for v in values], "at", lambda v: f"{v:,}", first=first)
    shown = rows[rows[other].isna() if value is None else rows[other] == value]
    return axis, shown, f", {other.removeprefix('n_')} {value:,.0f}" if value is not None else ""


def of_one_workload(choice: Choice, rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Only the rows with the chosen cell's prompt and generated tokens; where this figure has none of them, with the
    largest for which it has the chosen arms, and says so."""
    notes = []
    for size, what in (("n_prompt", "prompt"), ("n_gen", "generated")):
        wanted = getattr(choice.sizes, size)
        arms_at = rows[rows["arm"].isin(choice.arms)].groupby(size)["arm"].nunique()
        if wanted not in arms_at.index and len(arms_at):
            wanted = int(arms_at[arms_at == arms_at.max()].index.max())
            notes.append(f"The chosen cell does not have this figure; shown are cells of {wanted:,} {what} tokens.")
        rows = rows if arms_at.empty else rows[rows[size] == wanted]
    return rows, notes


def crossovers(choice: Choice, shown: pd.DataFrame) -> dict[str, Crossover]:
    """Where arm B crosses A."""
    found = {arm: crossover(shown[shown["arm"] == arm]) for arm in choice.arms[1:]}
    return {arm: at for arm, at in found.items() if at is not None}


def crossover_sentence(arm: str, baseline: str, at: Crossover) -> str:
    bounds = f" (95 % interval {at.low:,.0f} to {at.high:,.0f})" if at.low is not None and at.high is not None else ""
    return f"{subject(arm)} and {baseline} take the same time at a ubatch of about {at.n_ubatch:,.0f} tokens{bounds}."


def changes(choice: Choice, rows: pd.DataFrame, name: str) -> None:
    st.subheader(f"{plain(choice.b)} against {plain(choice.a)}", anchor=False)
    grid, verdicts = improvement_grid(rows[rows["arm"] == choice.b], lower_is_better=FIGURES[name].better == "lower")
    if grid.empty:
        show.nothing(f"{choice.b} and {choice.a} were not measured side by side.")
        return
    table = grid.mul(100).round(2).rename_axis("depth").reset_index()
    table.columns = pd.Index(["depth", *(f"ubatch {size:,.0f}" for size in grid.columns)])
    show.figure(
        change_figure(grid, verdicts),
        alt=f"how many per cent better {choice.b} is than {choice.a} in each cell; negative is worse",
        key="changes",
        table=table,
        name="changes",
    )
    st.caption("Positive (blue) is better for B, negative (orange) worse, grey not certain; the word is the verdict.")


def readable(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """The drawn figures as text."""
    unit = FIGURES[name].unit
    told = pd.DataFrame({"arm": rows["arm"], "ubatch": rows["n_ubatch"], "depth": rows["n_depth"]})
    for column, title in (("median", "median"), ("low", "low"), ("high", "high"), ("limit", "max(C, T) limit")):
        told[title] = rows[column].map(lambda value: format_value(value, unit), na_action="ignore")
    return told.assign(ratio=rows["ratio"].round(4), verdict=rows["verdict"])


main(current())
