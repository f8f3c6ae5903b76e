"""The Overview's strip of all arms of the cell, best first: each as many times as fast as A, and what it costs. A click
makes one B.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pandas as pd
import streamlit as st

from dashboard import address, show
from dashboard.choice import Choice
from dashboard.text import SIGNS, escape_markdown
from executor.units import format_factor, format_value
from profiler.arithmetic.stats import Comparison
from profiler.metrics import FIGURES, Figure
from profiler.report.cells import Cell
from profiler.report.shown_cells import led_comparison, printed_figure
from profiler.report.verdicts import as_fast, bounds_in_times, times_as_fast, told_bounds, verdict_word

DECODE: Final = "decode_tokens_per_s"
_COLUMNS: Final[dict[str, tuple[str, float]]] = {  # header with its unit, how many of the figure's own unit that is
    "ttft_ns": ("TTFT, ms", 1e6),
    "prefill_tokens_per_s": ("prefill, t/s", 1),
    "decode_tokens_per_s": ("decode, t/s", 1),
    "bytes_h2d": ("copied, MiB", 2**20),
    "vram_peak_bytes": ("memory, MiB", 2**20),
}
_SPEEDS: Final = {"ttft_ns": "TTFT {}", "prefill_tokens_per_s": "{} t/s", "decode_tokens_per_s": "decode {}"}
_COSTS: Final = {"bytes_h2d": "{} copied", "vram_peak_bytes": "{} held"}


def ranking(choice: Choice, cell: Cell) -> None:
    """Buttons that make an arm B, best first, and one that swaps A and B."""
    if choice.a is None or choice.b is None:
        return
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="arms-strip"):
        for name in _names(choice, cell):
            _button(choice, cell, name)
        st.button(
            "Swap A and B",
            on_click=address.put,
            kwargs={"a": choice.b, "b": choice.a},
            icon=":material/swap_horiz:",
            key="swap",
        )


def all_arms(choice: Choice, cell: Cell) -> None:
    """The figures of all arms, folded, where there are more than two."""
    names = _names(choice, cell)
    if choice.b is not None and len(names) > 2:
        with st.expander(f"All {len(names)} arms of this cell, best first"):
            show.table(ranking_table(cell, names), alt="all arms of this cell, best first", key="arms", name="arms")


def _names(choice: Choice, cell: Cell) -> list[str]:
    return ranked(cell, [arm.name for arm in choice.capture.manifest.arms if arm.is_resident])


def _button(choice: Choice, cell: Cell, name: str) -> None:
    """An arm with its figures; B stands out, and A, which it is held against, is no choice."""
    if name == choice.a:
        st.button(_label(cell, name), disabled=True, key=f"baseline-{name}")
        return
    st.button(
        _label(cell, name),
        on_click=address.put,
        kwargs={"b": name},
        type="primary" if name == choice.b else "secondary",
        help="Make this arm B",
        key=f"make-b-{name}",
    )


def _label(cell: Cell, name: str) -> str:
    """In three lines how many times as fast, how fast, and at what cost; decode on a line of its own where the prompt
    was the same work.
    """
    told = "A, baseline" if name == cell.baseline else _told(cell, name)
    lines = [f"**{escape_markdown(name)}** {escape_markdown(told)}"]
    if (decode := _decode(cell, name)) is not None and _is_alike(cell, name):
        words = f"decode {_in_factors(decode, FIGURES[DECODE])}{', on other work' if decode.is_other_work else ''}"
        lines.append(f"**{escape_markdown(words)}**")
    if (key := printed_figure(cell)) is not None and (value := cell.arms[name].median(key)) is not None:
        printed = cell.readings[key]
        lines.append(escape_markdown(f"{printed.label} {format_value(value, printed.unit)}"))
    for figures in (_SPEEDS, _COSTS):
        known = {words: (cell.arms[name].median(figure), FIGURES[figure].unit) for figure, words in figures.items()}
        parts = [words.format(format_value(*found)) for words, found in known.items() if found[0] is not None]
        lines += [escape_markdown(" · ".join(parts))] if parts else []
    return "\n".join(lines)


def _told(cell: Cell, name: str) -> str:
    """`▲ 1.46 x (1.41 to 1.52)`, no sign where no verdict is due; `prefill: same work` where both did the same."""
    told = led_comparison(cell, name)
    if told is None:
        return ""
    if told[0].is_other_work or told[0].is_same_work:
        return f"{told[1].label}: {verdict_word(told[0])}"
    return _in_factors(*told)


def _in_factors(found: Comparison, figure: Figure) -> str:
    bounds, sign = told_bounds(found, figure.better), SIGNS.get(found.verdict)
    fast = format_factor(times_as_fast(found.ratio, figure.better))
    return f"{f'{sign} ' if sign else ''}{fast} x{f' ({bounds})' if bounds else ''}"


def ranked(cell: Cell, resident: Sequence[str]) -> list[str]:
    """The fastest first in what the report leads with, A in its place, the faster in decode first among those that did
    A's work in the prompt; then those that were not compared, and last those that keep everything on the device, which
    are no choice.
    """

    def order(name: str) -> tuple[bool, float, float]:
        fast = 1.0 if name == cell.baseline or _is_alike(cell, name) else _factor(cell, name)
        decode = _decode(cell, name)
        decoded = as_fast(decode.ratio, DECODE) if decode is not None else 1.0
        return name in resident, -fast if fast is not None else 0.0, -decoded

    return sorted(cell.arms, key=order)


def _factor(cell: Cell, name: str) -> float | None:
    """How many times as fast as A; null where it was not compared, or did other work."""
    told = led_comparison(cell, name)
    return None if told is None or told[0].is_other_work else times_as_fast(told[0].ratio, told[1].better)


def _decode(cell: Cell, name: str) -> Comparison | None:
    """How an arm's decode compares with A's; null where it did A's work."""
    found = cell.against_baseline.get(name, {}).get(DECODE)
    return None if found is None or found.is_same_work else found


def _is_alike(cell: Cell, name: str) -> bool:
    """Whether an arm did what A did, so that it stands beside it."""
    told = led_comparison(cell, name)
    return told is not None and told[0].is_same_work


def ranking_table(cell: Cell, names: Sequence[str]) -> pd.DataFrame:
    """A row an arm, in this order: numbers, the unit in the header; empty where the cell does not say."""
    rows, has_decode = [], any(_decode(cell, name) is not None for name in names)
    for name in names:
        told = led_comparison(cell, name)
        row: dict[str, object] = {"arm": name, f"times as fast as {cell.baseline}": None, "low": None, "high": None}
        decode = _decode(cell, name)
        if name == cell.baseline:
            row[f"times as fast as {cell.baseline}"] = 1.0
        elif told is not None and not told[0].is_other_work:
            better = told[1].better
            fast = [times_as_fast(told[0].ratio, better), *(bounds_in_times(told[0], better) or (None, None))]
            row |= dict(zip(list(row)[1:], fast, strict=True))
        row["verdict"] = verdict_word(told[0]) if told is not None else ""
        if has_decode:
            row["decode, times as fast"] = as_fast(decode.ratio, DECODE) if decode is not None else None
        row |= {f"{one.label} (printed)": cell.arms[name].median(key) for key, one in cell.readings.items()}
        medians = {header: (cell.arms[name].median(figure), unit) for figure, (header, unit) in _COLUMNS.items()}
        row |= {header: None if value is None else value / unit for header, (value, unit) in medians.items()}
        rows.append(row)
    table = pd.DataFrame(rows)
    numbers = [column for column in table if column not in ("arm", "verdict")]
    return table.astype(dict.fromkeys(numbers, "float64")).round(dict.fromkeys(numbers, 4))
