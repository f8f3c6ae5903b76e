"""The headline figures: B large, its change against A, and both with their intervals."""

from __future__ import annotations

from typing import Any, Final

import streamlit as st

from dashboard.choice import Choice
from dashboard.overview.words import UNKNOWN, interval, judged, relative, spread
from dashboard.text import plain
from profiler.arithmetic.stats import Comparison, Estimate
from profiler.metrics import FIGURES
from profiler.report.data import Cell
from profiler.report.units import format_value

CARDS: Final = {
    "ttft_ns": "Time to first token",
    "prefill_tokens_per_s": "Prefill, tokens a second",
    "decode_tokens_per_s": "Decode, tokens a second",
    "bytes_h2d": "Bytes copied to the device",
    "exposed_copy_ns": "Exposed copy time",
    "vram_peak_bytes": "Device memory at the peak",
}
_TIMES: Final = ("ttft_ns", "prefill_tokens_per_s", "decode_tokens_per_s")
_COLOURS: Final = {"faster": "blue", "slower": "orange"}


def cards(choice: Choice, cell: Cell) -> list[str]:
    """The headline figures: B large (or the only arm), its change against A, and both with their intervals.

    Gives the labels of those that the cell does not have.
    """
    known = {name: title for name, title in CARDS.items() if any(found_of(choice, cell, name))}
    if not any(name in known for name in _TIMES) and any(found_of(choice, cell, "wall_ns")):
        known = {"wall_ns": "The whole pass"} | known
    for start in range(0, len(known), 3):
        columns = st.columns(3, gap="small")
        for name, column in zip(list(known)[start : start + 3], columns, strict=False):
            with column, st.container(border=True):
                _card(choice, cell, name, known[name])
    return [FIGURES[name].label for name in CARDS if name not in known]


def missing_line(missing: list[str]) -> list[str]:
    """What of the headline figures there is not, as a sentence."""
    return [f"Not in this capture for these passes: {', '.join(missing)}."] if missing else []


def reasons_line(choice: Choice, cell: Cell) -> str | None:
    """Why verdicts on B are inconclusive, each reason once."""
    compared = cell.against_baseline.get(choice.b or "", {}).values()
    reasons = dict.fromkeys(found.reason for found in compared if found is not None and found.reason)
    return f"Inconclusive: {'; '.join(reasons)}." if reasons else None


def found_of(choice: Choice, cell: Cell, name: str) -> list[Estimate | None]:
    """A figure of the arms on show, null where the cell has none."""
    return [cell.arms[arm].figures["pass"].get(name) for arm in choice.arms]


def _card(choice: Choice, cell: Cell, name: str, title: str) -> None:
    unit = FIGURES[name].unit
    found = found_of(choice, cell, name)
    shown = found[-1]
    value = format_value(shown.median, unit) if shown is not None else UNKNOWN
    compared = cell.against_baseline.get(choice.b or "", {}).get(name)
    delta, colour = _delta(compared, found)
    st.metric(title, value, delta, delta_color=colour, delta_arrow="off", help=FIGURES[name].meaning)
    if len(found) == 1:
        st.caption(plain(spread(shown, unit)))
        return
    lines = [
        f"{letter} {plain(arm)}: {plain(interval(one, unit))}"
        for letter, arm, one in zip("AB", choice.arms, found, strict=False)
    ]
    st.caption("  \n".join(lines))


def _delta(compared: Comparison | None, found: list[Estimate | None]) -> tuple[str | None, Any]:
    """The change in words, with its interval, and the colour that goes with the verdict."""
    if compared is not None:
        return judged(compared), _COLOURS.get(compared.verdict, "off")
    if len(found) == 2 and found[0] is not None and found[1] is not None and found[0].median > 0:
        return relative(found[1].median / found[0].median), "off"
    return None, "off"
