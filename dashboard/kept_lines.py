"""Timelines of passes, laid out side by side and kept: Streamlit's own cache cannot be filled from several threads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final

import pandas as pd
import streamlit as st

from dashboard.load import open_capture
from dashboard.trace_root import Fingerprint, Found
from profiler.capture import Capture
from profiler.metrics.timeline import Timeline, load_timeline

_LineKey = tuple[str, Fingerprint, int | None]
_MAX_LINES: Final = 4  # of five million events, each takes 0.3 GB


def of_passes(found: Found, pass_ids: Sequence[int | None]) -> list[Timeline]:
    """The timelines of passes; null: of the whole capture. Those not at hand are read side by side."""
    kept = _kept_lines()
    keys = [(found.path, found.fingerprint, pass_id) for pass_id in pass_ids]
    missing = [key for key in dict.fromkeys(keys) if kept.get(key) is None]
    if missing:
        capture = open_capture(found)
        capture.passes  # noqa: B018 - read once, before the threads want it
        with st.spinner("Laying out the timeline …"), ThreadPoolExecutor(max_workers=2) as pool:
            for key, line in zip(missing, pool.map(lambda key: _line(capture, key[2]), missing), strict=True):
                kept.put(key, line)
    return [kept.get(key) or _line(open_capture(found), key[2]) for key in keys]


def _line(capture: Capture, pass_id: int | None) -> Timeline:
    by_stream = capture.manifest.source != "hprof"
    if pass_id is None:
        return load_timeline(capture, by_stream=by_stream, on_demand=True)
    started = capture.passes.set_index("pass_id")["t_start"].to_dict()[pass_id]
    origin_ns = int(started) if pd.notna(started) else None
    return load_timeline(capture, [pass_id], origin_ns=origin_ns, by_stream=by_stream, on_demand=True)


class _Kept:
    """The timelines used last."""

    def __init__(self, size: int) -> None:
        self._size, self._lines, self._lock = size, OrderedDict[_LineKey, Timeline](), Lock()

    def get(self, key: _LineKey) -> Timeline | None:
        with self._lock:
            if key in self._lines:
                self._lines.move_to_end(key)
            return self._lines.get(key)

    def put(self, key: _LineKey, line: Timeline) -> None:
        with self._lock:
            self._lines[key] = line
            while len(self._lines) > self._size:
                self._lines.popitem(last=False)


@st.cache_resource
def _kept_lines() -> _Kept:
    return _Kept(_MAX_LINES)
