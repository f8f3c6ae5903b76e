"""Sweep: how many times as fast as A arm B is in every cell, then along ubatch, depth or prompt beside the other arms,
then the figures themselves with their limits.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import address, show
from dashboard.choice import Choice, current
from dashboard.figures.size_axes import SweepArms, axis_title
from dashboard.figures.sweep import AXIS_NAMES, AXIS_TITLES, grid_figure, ratio_figure, sweep_figure
from dashboard.table_columns import in_one_unit
from dashboard.text import SIGNS, cell_key, escape_markdown
from executor.units import format_factor, listed
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
    factor_grid,
    factors_as_fast,
    one_ubatch,
    rows_of_workload,
    rows_over,
    sweep_figures,
)
from profiler.report.verdicts import TELLING

_GRID: Final = "grid"


def main(choice: Choice) -> None:
    if choice.sizes is None:
        show.head("Sweep", choice)
        show.nothing(
            "This capture has no passes, so there is nothing to sweep over.",
            "Measure several sizes with `hprof run -ub 64-1024*2 -d 0,4096`.",
        )
        return
    against = f"{choice.b} beat {choice.a}" if choice.b else f"{choice.a} do best"
    show.head(escape_markdown(f"At which sizes does {against}?"), choice)
    tables = {name: sweep_figures(choice.report.cells, name) for name in TELLING}
    known = [name for name in TELLING if name != "wall_ns" and not tables[name].empty]
    known = known or [name for name in ("wall_ns",) if not tables[name].empty]
    if not known:
        show.nothing("The passes of this capture say no times.")
        return
    with st.container(horizontal=True, gap="medium"):
        name = address.segments("Figure", known, "figure", lambda name: FIGURES[name].headline.partition(",")[0])
        rows = tables[name]
        sizes = cell_with_rows(rows[rows["arm"].isin(choice.arms)], choice.sizes)
        axes = axes_of(rows, sizes)
        axis = axes[0] if len(axes) == 1 else address.segments("Axis", axes, "axis", AXIS_NAMES.__getitem__)
    if sizes != choice.sizes.key:
        show.sentences([f"The chosen cell does not have this figure; {workload(sizes)} is shown."])
    shown = rows_over(rows, axis, sizes)
    arms = sweep_arms(choice)
    if choice.b is not None:
        everywhere(
            choice, rows_over(rows, axis, sizes) if axis == PROMPT else rows_of_workload(rows, sizes), name, axis
        )
        along(choice, shown, name, axis, arms)
    absolute(shown, name, axis, arms, at_which(axis, sizes))


def sweep_arms(choice: Choice) -> SweepArms:
    names = list(dict.fromkeys(arm for cell in choice.report.cells for arm in cell.arms))
    ceilings = [arm.name for arm in choice.capture.manifest.arms if arm.is_resident]
    return SweepArms(names, choice.a or names[0], choice.b, ceilings)


def everywhere(choice: Choice, rows: pd.DataFrame, name: str, axis: str) -> None:
    """B against A in every cell of the workload; a click chooses the cell."""
    mine = rows[rows["arm"] == choice.b]
    across = PROMPT if axis == PROMPT else UBATCH
    if mine[across].isna().all():
        show.nothing("The source does not say of which size these passes are, so there are no sizes to compare.")
        return
    grid, words = factor_grid(mine.assign(n_ubatch=mine[across]), name)
    if grid.empty:
        show.nothing(f"{choice.b} and {choice.a} were not measured side by side.")
        return
    word = across.removeprefix("n_")
    table = grid.rename(columns={size: f"{word} {size:,.0f}" for size in grid.columns})
    assert choice.sizes is not None
    place = float(choice.sizes.n_depth or 0), float(getattr(choice.sizes, across) or 0)
    least, most = float(np.nanmin(grid.to_numpy())), float(np.nanmax(grid.to_numpy()))
    signs = f"{', '.join(f'{sign} {verdict}' for verdict, sign in SIGNS.items())}, pale: no verdict"
    st.markdown(
        f"**{escape_markdown(choice.b)}, times as fast as {escape_markdown(choice.a)}** in "
        f"{escape_markdown(FIGURES[name].label)}: above 1 it is faster. {signs}. Click a place to choose that cell."
    )
    show.figure(
        grid_figure(grid, words, across, place),
        alt=f"how many times as fast {choice.b} is as {choice.a} in each cell: {format_factor(least)} to "
        f"{format_factor(most)}",
        key=_GRID,
        table=table.rename_axis("depth").reset_index(),
        name="times-as-fast",
        on_select=lambda: choose_cell(choice, across),
    )


def choose_cell(choice: Choice, across: str) -> None:
    """What a click on the grid asks for: the cell of that depth and size with the chosen one's other sizes."""
    points = st.session_state[_GRID].selection.points
    if not points:
        return
    depth, size = (int(value) for value in points[0]["customdata"])
    if found := choice.cell_with(depth, **{across: size}):
        address.put(cell=cell_key(found))


def along(choice: Choice, shown: pd.DataFrame, name: str, axis: str, arms: SweepArms) -> None:
    """How many times as fast as A every arm is along the axis, at the chosen cell's other size."""
    factors = factors_as_fast(shown, name)
    if len(factors[axis].dropna().unique()) < 2:
        st.caption("One size was measured along this axis; a line needs more: `hprof run -ub 64-1024*2 -d 0,4096`.")
        return
    found = crossovers(choice, one_ubatch(shown) if axis == PROMPT else shown) if axis != DEPTH else {}
    for at in found.values():
        st.markdown(escape_markdown(crossover_sentence(choice.b_as_subject, choice.a or "", at, axis)))
    columns = {"arm": factors["arm"]} | {axis.removeprefix("n_"): factors[axis]}
    table = pd.DataFrame(columns).assign(
        **{"times as fast": factors["fast"], "low": factors["fast_low"], "high": factors["fast_high"]},
        verdict=factors["word"],
    )
    show.figure(
        ratio_figure(factors, axis, arms, found),
        alt=f"times as fast as {choice.a} over {AXIS_TITLES[axis]}, a line an arm, 1 where both take as long",
        key="ratios",
        table=table,
        name="times-as-fast-over-sizes",
    )
    if axis == PROMPT and (shown["n_prompt"] <= shown["n_ubatch"]).all():
        st.caption("Every prompt fits into one ubatch, so its length is what goes through the layers together.")


def absolute(shown: pd.DataFrame, name: str, axis: str, arms: SweepArms, at: str) -> None:
    """The figure itself for every arm, with the limit of the two on show."""
    ceilings = [arm for arm in arms.ceilings if (shown["arm"] == arm).any()]
    limit = f", and {escape_markdown(listed(ceilings))} with all weights resident" if ceilings else ""
    st.markdown(
        f"**{axis_title(name).capitalize()}**{at}; dotted: what A and B would reach if all copies were hidden{limit}."
    )
    show.figure(
        sweep_figure(shown, name, axis, arms),
        alt=f"{axis_title(name)} over {AXIS_TITLES[axis]}, a line an arm{at}",
        key="lines",
        table=readable(shown, name),
        name="sweep",
    )


def at_which(axis: str, sizes: CellKey) -> str:
    """The size that stays the same along the axis: `, depth 4,096`."""
    other = UBATCH if axis == DEPTH else DEPTH
    value = getattr(sizes, other)
    return f", {other.removeprefix('n_')} {value:,.0f}" if value is not None else ""


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


def readable(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """The drawn figures as a table."""
    sizes = {"prompt": "n_prompt", "ubatch": "n_ubatch", "depth": "n_depth"}
    told = pd.DataFrame({"arm": rows["arm"], **{title: rows[column] for title, column in sizes.items()}})
    measured = {"median": "median", "low": "low", "high": "high", "max(C, T) limit": "limit"}
    columns = in_one_unit({title: rows[column] for title, column in measured.items()}, FIGURES[name].unit)
    return told.assign(**columns, ratio=rows["ratio"], verdict=rows["word"])


main(current())
