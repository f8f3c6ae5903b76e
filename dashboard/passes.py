"""Which passes stand for the chosen arms, their timelines (laid out side by side and kept), and what is made of
them: the canvas's bytes, the heatmap of lanes, and files to take along.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from dashboard import address, stretches, trace_root
from dashboard.choice import Choice
from dashboard.figures.time import busy_figure
from dashboard.load import open_capture
from dashboard.timeline import component
from dashboard.timeline.component import Windows
from dashboard.timeline.pack import PassToDraw, pack
from dashboard.trace_root import CaptureRef, Fingerprint
from executor.units import shortened
from profiler.capture import Capture
from profiler.export.tracks import typical_passes
from profiler.metrics.timeline import Timeline, lane_figures, load_timeline
from profiler.metrics.timeline_detail import UbatchSpan, ubatch_spans
from profiler.ordering.check import check_capture
from profiler.ordering.on_timeline import MATCHED_COLUMNS, MarkedPair, marked_pairs
from profiler.ordering.violation import OrderingViolation

_MAX_TITLE: Final = 80  # characters; the canvas takes seconds over names of many thousands


@dataclass(frozen=True, slots=True)
class ShownPass:
    """One pass on the page; `pass_id` is null where a whole capture stands for it."""

    arm: str
    title: str
    pass_id: int | None


def passes_of_cell(choice: Choice) -> pd.DataFrame:
    """Rows of the `passes` table of the chosen cell and arms, warm-ups left out."""
    frame = choice.capture.passes
    if choice.sizes is None:
        return frame.iloc[:0]
    return frame[choice.sizes.rows_in(frame) & frame["arm"].isin(choice.arms) & frame["pass_id"].notna()]


def choose_repetition(choice: Choice, **layout: Any) -> list[ShownPass]:
    """Let the reader choose a repetition (the same for both arms, which had the same input), first the typical one."""
    if choice.sizes is None:
        return [ShownPass("capture", "whole capture", None)]
    rows = passes_of_cell(choice)
    first = rows[rows["arm"] == choice.a]
    keys = repetition_keys(rows)
    numbers = keys[keys.index.isin(first["pass_id"])]
    typical = numbers.get(typical_passes(first)[0])
    if typical is None or numbers.nunique() < 2:
        return [_shown(rows, arm, rows) for arm in choice.arms]
    options = [typical, *(key for key in numbers.drop_duplicates() if key != typical)]
    chosen = address.select(
        "Repetition",
        options,
        "rep",
        lambda key: f"{key}, of median length" if key == typical else str(key),
        **layout,
    )
    return [_shown(rows[rows["pass_id"].isin(keys[keys == chosen].index)], arm, rows) for arm in choice.arms]


def repetition_keys(rows: pd.DataFrame) -> pd.Series[Any]:
    """What the address calls each pass's repetition, by pass id, in rising order: `2`, or `boot 1, 2` where there were
    several boots. Passes without a number are left out.
    """
    known = rows[rows["repetition"].notna()].sort_values(["boot", "repetition"]).set_index("pass_id")
    numbers = known["repetition"].astype(int).astype(str)
    boots = known["boot"].fillna(0).astype(int)
    return ("boot " + boots.astype(str) + ", " + numbers) if boots.nunique() > 1 else numbers


def _shown(wanted: pd.DataFrame, arm: str, rows: pd.DataFrame) -> ShownPass:
    """An arm's pass among the wanted ones; where it has none there, the typical one of `rows`."""
    mine = wanted[wanted["arm"] == arm]
    pass_id = typical_passes(mine if len(mine) else rows[rows["arm"] == arm])[0]
    return ShownPass(arm, shortened(arm, _MAX_TITLE), pass_id)


def lines(choice: Choice, shown: Sequence[ShownPass]) -> list[Timeline]:
    """The timelines of the passes."""
    return timelines_of(choice.found, [one.pass_id for one in shown])


def packed(choice: Choice, shown: Sequence[ShownPass], windows: Windows | None) -> bytes:
    """The passes for the canvas; `windows` say which stretch of each is wanted where not all fits."""
    key = (choice.found.key, choice.found.fingerprint, tuple((one.title, one.pass_id) for one in shown))
    wanted = tuple(windows) if windows and len(windows) == len(shown) else (None,) * len(shown)
    return _packed(*key, wanted, choice.capture.manifest.link_h2d_gb_s, _choice=choice, _shown=shown)


@st.cache_resource(max_entries=6, show_spinner="Packing the events …")
def _packed(
    capture: bytes,
    fingerprint: trace_root.Fingerprint,  # noqa: ARG001 - a part of the key
    passes: tuple[tuple[str, int | None], ...],
    wanted: tuple[tuple[int, int] | None, ...],
    link_gb_s: float | None,
    _choice: Choice,
    _shown: Sequence[ShownPass],
) -> bytes:
    sides = []
    for one, line, window in zip(_shown, lines(_choice, _shown), wanted, strict=True):
        if one.pass_id is None:
            sides.append(PassToDraw(one.title, line, wanted=window))
            continue
        spans = ubatch_spans(line, _choice.capture.table("ubatches", pass_ids=[one.pass_id]))
        known_ns = _first_token_ns(_choice, one.pass_id, spans)
        sides.append(PassToDraw(one.title, line, spans, window, known_ns, _marks(_choice, one.pass_id, line)))
    can_be_cut = stretches.can_be_cut(_choice)
    first = first_view(sides[0].line) if can_be_cut and len(sides) == 1 else None
    key = f"{capture!r}|{passes}"
    return pack(sides, component.header(key, link_gb_s, can_be_cut=can_be_cut, first_view=first))


def first_view(line: Timeline) -> tuple[int, int] | None:
    """Where devices worked, of a trace more than half of which is something else, such as a program's start; null: all
    of it.
    """
    (begin, end), whole = line.at_work, line.extent
    if end - begin > _MOST_OF_A_TRACE * (whole[1] - whole[0]):
        return None
    margin = (end - begin) // 50
    return begin - margin, end + margin


def _first_token_ns(choice: Choice, pass_id: int, spans: Sequence[UbatchSpan]) -> int | None:
    """When the pass's first token was known, on its line's clock; null where the source does not say."""
    rows = choice.capture.passes
    ttft_ns = rows.loc[rows["pass_id"] == pass_id, "ttft_ns"].iloc[0]
    prompt = [span.start_ns for span in spans if span.phase == "prefill"]
    return None if pd.isna(ttft_ns) or not prompt else min(prompt) + int(ttft_ns)


def _marks(choice: Choice, pass_id: int, line: Timeline) -> list[MarkedPair]:
    """What `hprof check` finds in a pass; nothing where no order was recorded."""
    if not choice.capture.n_rows("ordering"):
        return []
    found = _violations(choice.found.key, choice.found.fingerprint, pass_id, _capture=choice.capture)
    return marked_pairs(line.table(MATCHED_COLUMNS), found) if found else []


@st.cache_resource(max_entries=8, show_spinner="Checking the order …")
def _violations(
    capture: bytes,  # noqa: ARG001 - a part of the key, as the next
    fingerprint: trace_root.Fingerprint,  # noqa: ARG001
    pass_id: int,
    _capture: Capture,
) -> Sequence[OrderingViolation]:
    return check_capture(_capture, name_in=pass_id).violations


def busy(choice: Choice, shown: Sequence[ShownPass]) -> tuple[go.Figure, list[pd.DataFrame]]:
    """How busy each lane was: the heatmap, and `lane_figures` of each pass."""
    key = tuple((one.title, one.pass_id) for one in shown)
    return _busy(choice.found.key, choice.found.fingerprint, key, _choice=choice, _shown=shown)


@st.cache_resource(max_entries=6, show_spinner=False)
def _busy(
    capture: bytes,  # noqa: ARG001 - a part of the key, as the next two
    fingerprint: trace_root.Fingerprint,  # noqa: ARG001
    passes: tuple[tuple[str, int | None], ...],  # noqa: ARG001
    _choice: Choice,
    _shown: Sequence[ShownPass],
) -> tuple[go.Figure, list[pd.DataFrame]]:
    drawn = lines(_choice, _shown)
    return busy_figure(drawn, [one.title for one in _shown]), [lane_figures(line) for line in drawn]


def chrome_json(choice: Choice, shown: Sequence[ShownPass]) -> bytes:
    """The passes (or the whole capture) in Chrome's trace format."""
    from profiler.export.chrome import write_chrome

    out = io.BytesIO()
    ids = [one.pass_id for one in shown if one.pass_id is not None]
    write_chrome([(choice.capture, ids or None)], out)
    return out.getvalue()


def html_report(choice: Choice) -> bytes:
    """The report as one HTML file that loads nothing."""
    from profiler.export.html import render_html
    from profiler.export.tracks import chosen_passes, tracks_of

    tracks = tracks_of([(choice.capture, chosen_passes(choice.capture, None))])
    return render_html(choice.whole_report, tracks).encode()


def events_table(choice: Choice, shown: Sequence[ShownPass]) -> pd.DataFrame:
    """The events of the passes, as captured, with the arm in front."""
    frames = []
    for one in shown:
        frame = choice.capture.frame("events", pass_ids=None if one.pass_id is None else [one.pass_id])
        frame.insert(0, "arm", one.arm)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


_MOST_OF_A_TRACE: Final = 0.5
_LineKey = tuple[bytes, Fingerprint, int | None]
_MAX_LINES: Final = 4
_MAX_ROWS: Final = 10_000_000  # of all lines that are kept: five million take 0.3 GB


def timelines_of(found: CaptureRef, pass_ids: Sequence[int | None]) -> list[Timeline]:
    """The timelines of passes; null: of the whole capture. Those not at hand are read side by side."""
    kept = _kept_lines()
    keys = [(found.key, found.fingerprint, pass_id) for pass_id in pass_ids]
    missing = [key for key in dict.fromkeys(keys) if kept.get(key) is None]
    if missing:
        capture = open_capture(found)
        capture.passes  # noqa: B018 - read once, before the threads want it
        with st.spinner("Laying out the timeline …"), ThreadPoolExecutor(max_workers=2) as pool:
            for key, line in zip(missing, pool.map(lambda key: _lay_out(capture, key[2]), missing), strict=True):
                kept.put(key, line)
    return [kept.get(key) or _lay_out(open_capture(found), key[2]) for key in keys]


def _lay_out(capture: Capture, pass_id: int | None) -> Timeline:
    by_stream = capture.manifest.source != "hprof"
    if pass_id is None:
        return load_timeline(capture, by_stream=by_stream, on_demand=True)
    started = capture.passes.set_index("pass_id")["t_start"].to_dict()[pass_id]
    origin_ns = int(started) if pd.notna(started) else None
    return load_timeline(capture, [pass_id], origin_ns=origin_ns, by_stream=by_stream, on_demand=True)


class TimelineCache:
    """The timelines used last, as many as have this many rows together; at least the very last."""

    def __init__(self, size: int, n_rows: int) -> None:
        self._size, self._n_rows = size, n_rows
        self._lines, self._lock = OrderedDict[_LineKey, Timeline](), Lock()

    def get(self, key: _LineKey) -> Timeline | None:
        with self._lock:
            if key in self._lines:
                self._lines.move_to_end(key)
            return self._lines.get(key)

    def put(self, key: _LineKey, line: Timeline) -> None:
        with self._lock:
            self._lines[key] = line
            while len(self._lines) > 1 and (len(self._lines) > self._size or self._all_rows > self._n_rows):
                self._lines.popitem(last=False)

    @property
    def _all_rows(self) -> int:
        return sum(map(len, self._lines.values()))


@st.cache_resource
def _kept_lines() -> TimelineCache:
    return TimelineCache(_MAX_LINES, _MAX_ROWS)
