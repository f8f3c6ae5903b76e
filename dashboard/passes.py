"""Which passes stand for the chosen arms, and their timelines packed for the canvas."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from dashboard import address, kept_lines, trace_root
from dashboard.choice import Choice
from dashboard.figures.busy import busy_figure
from dashboard.timeline import component
from dashboard.timeline.component import Windows
from dashboard.timeline.pack import pack
from dashboard.timeline.side import Side
from profiler.export.selection import typical_passes
from profiler.metrics.anchors import ubatch_spans
from profiler.metrics.timeline import Timeline, lane_figures

_MAX_TITLE: Final = 80  # characters; the canvas takes seconds over names of many thousands


@dataclass(frozen=True, slots=True)
class Shown:
    """One pass on the page; `pass_id` is null where a whole capture stands for it."""

    arm: str
    title: str
    pass_id: int | None


def of_cell(choice: Choice) -> pd.DataFrame:
    """Rows of the `passes` table of the chosen cell and arms, warm-ups left out."""
    frame = choice.capture.passes
    if choice.sizes is None:
        return frame.iloc[:0]
    return frame[choice.sizes.rows_in(frame) & frame["arm"].isin(choice.arms) & frame["pass_id"].notna()]


def choose_repetition(choice: Choice) -> list[Shown]:
    """Let the reader choose a repetition (the same for both arms, which had the same input), first the typical one."""
    if choice.sizes is None:
        return [Shown("capture", "whole capture", None)]
    rows = of_cell(choice)
    first = rows[rows["arm"] == choice.a]
    numbers = first["repetition"].dropna().astype(int).drop_duplicates().tolist()
    typical = first.set_index("pass_id")["repetition"].get(typical_passes(first)[0])
    if len(numbers) < 2 or pd.isna(typical):
        return [_shown(rows, arm, None) for arm in choice.arms]
    options = [int(typical), *(number for number in sorted(numbers) if number != int(typical))]
    chosen = address.select(
        "Repetition",
        options,
        "rep",
        lambda number: f"{number}, of median length" if number == options[0] else str(number),
        width=220,
    )
    return [_shown(rows, arm, chosen) for arm in choice.arms]


def _shown(rows: pd.DataFrame, arm: str, repetition: int | None) -> Shown:
    mine = rows[rows["arm"] == arm]
    same = mine[mine["repetition"] == repetition] if repetition is not None else mine
    pass_id = typical_passes(same if len(same) else mine)[0]
    return Shown(arm, arm if len(arm) <= _MAX_TITLE else f"{arm[: _MAX_TITLE - 1]}…", pass_id)


def lines(choice: Choice, shown: Sequence[Shown]) -> list[Timeline]:
    """The timelines of the passes."""
    return kept_lines.of_passes(choice.found, [one.pass_id for one in shown])


def packed(choice: Choice, shown: Sequence[Shown], windows: Windows | None) -> bytes:
    """The passes for the canvas; `windows` say which stretch of each is wanted where not all fits."""
    key = (choice.found.path, choice.found.fingerprint, tuple((one.title, one.pass_id) for one in shown))
    wanted = tuple(windows) if windows and len(windows) == len(shown) else (None,) * len(shown)
    return _packed(*key, wanted, choice.capture.manifest.link_h2d_gb_s, _choice=choice, _shown=shown)


@st.cache_resource(max_entries=6, show_spinner="Packing the events …")
def _packed(
    path: str,
    fingerprint: trace_root.Fingerprint,  # noqa: ARG001 - a part of the key
    passes: tuple[tuple[str, int | None], ...],
    wanted: tuple[tuple[int, int] | None, ...],
    link_gb_s: float | None,
    _choice: Choice,
    _shown: Sequence[Shown],
) -> bytes:
    sides = []
    for one, line, window in zip(_shown, lines(_choice, _shown), wanted, strict=True):
        rows = _choice.capture.table("ubatches", pass_ids=None if one.pass_id is None else [one.pass_id])
        sides.append(Side(one.title, line, ubatch_spans(line, rows) if one.pass_id is not None else (), window))
    return pack(sides, component.header(f"{path}|{passes}", link_gb_s))


def busy(choice: Choice, shown: Sequence[Shown]) -> tuple[go.Figure, list[pd.DataFrame]]:
    """How busy each lane was: the heatmap, and `lane_figures` of each pass."""
    key = tuple((one.title, one.pass_id) for one in shown)
    return _busy(choice.found.path, choice.found.fingerprint, key, _choice=choice, _shown=shown)


@st.cache_resource(max_entries=6, show_spinner=False)
def _busy(
    path: str,  # noqa: ARG001 - a part of the key, as the next two
    fingerprint: trace_root.Fingerprint,  # noqa: ARG001
    passes: tuple[tuple[str, int | None], ...],  # noqa: ARG001
    _choice: Choice,
    _shown: Sequence[Shown],
) -> tuple[go.Figure, list[pd.DataFrame]]:
    drawn = lines(_choice, _shown)
    return busy_figure(drawn, [one.title for one in _shown]), [lane_figures(line) for line in drawn]


def chrome_json(choice: Choice, shown: Sequence[Shown]) -> bytes:
    """The passes (or the whole capture) in Chrome's trace format."""
    from profiler.export.chrome import write_chrome

    out = io.BytesIO()
    ids = [one.pass_id for one in shown if one.pass_id is not None]
    write_chrome([(choice.capture, ids or None)], out)
    return out.getvalue()


def html_report(choice: Choice) -> bytes:
    """The report as one HTML file that loads nothing."""
    from profiler.export.html import render_html
    from profiler.export.selection import chosen_passes
    from profiler.export.tracks import tracks_of

    tracks = tracks_of([(choice.capture, chosen_passes(choice.capture, None))])
    return render_html(choice.whole_report, tracks).encode()


def events_table(choice: Choice, shown: Sequence[Shown]) -> pd.DataFrame:
    """The events of the passes, as captured, with the arm in front."""
    frames = []
    for one in shown:
        frame = choice.capture.frame("events", pass_ids=None if one.pass_id is None else [one.pass_id])
        frame.insert(0, "arm", one.arm)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)
