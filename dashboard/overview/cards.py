"""The figures of a cell: the headline cards (B large, its change against A, both with intervals), the table of all
figures, and the short texts of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd
import streamlit as st

from dashboard.choice import Choice
from dashboard.overview.sparkline import against, in_words, over_ubatches, sparkline, tells
from dashboard.text import SIGNS, escape_markdown
from executor.units import column_scale, format_factor, format_value
from profiler.arithmetic.stats import Comparison, Estimate
from profiler.metrics import FIGURES, SPEEDS, Figure
from profiler.report.cells import Cell
from profiler.report.shown_cells import printed_figure
from profiler.report.verdicts import (
    bounds_in_times,
    command_for_verdict,
    missing_line,
    times_as_fast,
    told_bounds,
    verdict_word,
)

PRICES: Final = ("bytes_h2d", "exposed_copy_ns", "vram_peak_bytes")
_MOST_PRINTED: Final = 3  # cards
_ALIKE: Final = 0.0005  # of the other arm's figure: less reads the same
_COLOURS: Final = {"faster": "blue", "slower": "orange"}


def known_figures(choice: Choice, cell: Cell, names: Sequence[str]) -> list[str]:
    """Those of the figures that the cell has; of SPEEDS at least how long a pass takes."""
    known = [name for name in names if any(found_of(choice, cell, name))]
    if names == SPEEDS and not known and any(found_of(choice, cell, "wall_ns")):
        return ["wall_ns"]
    return known


def printed_figures(choice: Choice, cell: Cell) -> list[str]:
    """What the programs printed themselves that the arms on show have: what the report leads with first, and no more
    than a person reads as cards; the table below has all.
    """
    first = printed_figure(cell)
    names = sorted(cell.readings, key=lambda name: name != first)
    return [name for name in names if any(found_of(choice, cell, name))][:_MOST_PRINTED]


def card(choice: Choice, cell: Cell, name: str, cells: Sequence[Cell] = ()) -> None:
    """A figure: B large (or the only arm), its change against A, and both with their intervals. With the capture's
    cells, how they compare over the sizes of the ubatch.
    """
    is_first = "" if cells else "-first"  # until the events are read
    with st.container(border=True, key=f"card-{name}{is_first}"):
        left, right = st.columns([5, 4], gap="small", vertical_alignment="center")
        with left:
            _metric(choice, cell, name)
        with right:
            _line(choice, cell, name, cells)
            _beside(choice, cell, name)


def _line(choice: Choice, cell: Cell, name: str, cells: Sequence[Cell]) -> None:
    """Nothing where a line would show chance alone."""
    compared = cell.against_baseline.get(choice.b or "", {}).get(name)
    lines = [over_ubatches(cells, cell, arm, name) for arm in choice.arms]
    line = lines[0] if len(lines) == 1 else against(lines[0], lines[1], name)
    if name in FIGURES and tells(line) and not (compared is not None and compared.is_same_work):
        drawn = sparkline(line, cell.n_ubatch, None if len(lines) == 1 else 1.0)
        st.image(drawn, alt=in_words(line, name, choice.arms), width="stretch")


def absent_line(choice: Choice, cell: Cell) -> list[str]:
    """What of the headline figures there is not, as a sentence."""
    known = [*known_figures(choice, cell, SPEEDS), *known_figures(choice, cell, PRICES)]
    missing = [FIGURES[name].label for name in (*SPEEDS, *PRICES) if name not in known]
    return [f"Not in this capture for these passes: {', '.join(missing)}."] if missing else []


def reasons_lines(choice: Choice, cell: Cell) -> list[str]:
    """Why B has no verdict in some figures: what is missing, with the command that gives it, and each other reason
    once.
    """
    compared = [found for found in cell.against_baseline.get(choice.b or "", {}).values() if found is not None]
    told = []
    if (missing := missing_line(compared)) is not None:
        manifest = choice.capture.manifest
        command = command_for_verdict(manifest.argv, compared, manifest.source)
        told.append(f"No verdict yet: {missing}{f' ({command})' if command else ''}.")
    reasons = dict.fromkeys(found.reason for found in compared if found.reason and not found.n_missing)
    return [*told, *([f"No verdict on some: {'; '.join(map(str, reasons))}."] if reasons else [])]


def found_of(choice: Choice, cell: Cell, name: str) -> list[Estimate | None]:
    """A figure of the arms on show, null where the cell has none."""
    return [cell.arms[arm].figures["pass"].get(name) for arm in choice.arms]


def _metric(choice: Choice, cell: Cell, name: str) -> None:
    figure, found = cell.described(name), found_of(choice, cell, name)
    shown = found[-1]
    value = format_value(shown.median if shown is not None else None, figure.unit)
    delta, colour = _delta(figure, cell.against_baseline.get(choice.b or "", {}).get(name), found)
    label = escape_markdown(figure.label) if name in cell.readings else figure.headline
    st.metric(label, value, delta, delta_color=colour, delta_arrow="off", help=figure.meaning)


def _beside(choice: Choice, cell: Cell, name: str) -> None:
    """Both arms' figures with their intervals; of one arm what its figure is the median of."""
    unit, found = cell.described(name).unit, found_of(choice, cell, name)
    if len(found) == 1:
        st.caption(escape_markdown(spread(found[0], unit)))
        return
    lines = [
        f"{letter} {escape_markdown(arm)}: {escape_markdown(with_interval(one, unit))}"
        for letter, arm, one in zip("AB", choice.arms, found, strict=False)
    ]
    st.caption("  \n".join(lines))


def _delta(figure: Figure, compared: Comparison | None, found: list[Estimate | None]) -> tuple[str | None, Any]:
    """The change in words, with its interval, and the colour that goes with the verdict."""
    if compared is not None:
        return judged(compared, figure), _COLOURS.get(compared.verdict, "off")
    if len(found) == 2 and found[0] is not None and found[1] is not None and found[0].median > 0:
        return relative(found[1].median / found[0].median), "off"
    return None, "off"


def figure_table(choice: Choice) -> pd.DataFrame:
    """One row a figure that an arm has, in the unit named beside it: A, B, how many times as fast, verdict, meaning."""
    cell, rows = choice.cell, []
    for name in {**FIGURES, **cell.readings}:
        found = found_of(choice, cell, name)
        if any(found):
            compared = cell.against_baseline.get(choice.b or "", {}).get(name)
            rows.append(_row(choice, name, found, compared))
    table = pd.DataFrame(rows)
    texts = ("figure", "unit", "verdict", "meaning")
    return table.astype({column: "float64" for column in table if column not in texts})


def _row(
    choice: Choice, name: str, found: list[Estimate | None], compared: Comparison | None
) -> dict[str, str | float | None]:
    figure = choice.cell.described(name)
    scale, unit = column_scale(max(one.median for one in found if one is not None), figure.unit)
    row: dict[str, str | float | None] = {"figure": figure.label, "unit": unit}
    for letter, arm, one in zip("AB", choice.arms, found, strict=False):
        edges = (None, None, None) if one is None else (one.median, one.low, one.high)
        for part, value in zip(("", " low", " high"), edges, strict=True):
            row[f"{letter} {arm}{part}"] = None if value is None else value / scale
    if choice.b is not None:
        low, high = (bounds_in_times(compared, figure.better) if compared else None) or (None, None)
        row["B times as fast"] = times_as_fast(compared.ratio, figure.better) if compared else None
        row |= {"times low": low, "times high": high, "verdict": verdict_word(compared) if compared else ""}
    return row | {"meaning": figure.meaning}


def with_interval(found: Estimate | None, unit: str) -> str:
    """`501 ms [420 ms, 587 ms]`; the interval where six passes or more gave one."""
    if found is None:
        return "not known"
    text = format_value(found.median, unit)
    edges = [format_value(edge, unit) for edge in (found.low, found.high) if edge is not None]
    return text if len(set(edges)) < 2 else f"{text} [{edges[0]}, {edges[1]}]"


def spread(found: Estimate | None, unit: str) -> str:
    """What a single arm's figure is the median of, and its interval."""
    if found is None:
        return "not known"
    interval = with_interval(found, unit).partition(" [")[2]
    passes_read = f"median of {found.n} passes" if found.n > 1 else "one pass"
    return f"{passes_read}, 95 % interval [{interval}" if interval else passes_read


def judged(compared: Comparison, figure: Figure) -> str:
    """`▲ 1.46 x as fast (1.41 to 1.52): faster`; no sign where no verdict is due: `same work, 1.08 x as fast`."""
    fast = f"{format_factor(times_as_fast(compared.ratio, figure.better))} x as fast"
    if compared.is_same_work or compared.is_other_work:
        return f"{verdict_word(compared)}, {fast}"
    bounds = told_bounds(compared, figure.better)
    told = f"{fast}{f' ({bounds})' if bounds else ''}: {verdict_word(compared)}"
    return " ".join([*([SIGNS[compared.verdict]] if compared.verdict in SIGNS else []), told])


def relative(ratio: float) -> str:
    """A figure that no verdict is given on, against A's: `1.21 x as much`, `none of it`."""
    if ratio == 0:
        return "none of it"
    return "= the same" if abs(ratio - 1) < _ALIKE else f"{format_factor(ratio)} x as much"
