"""Everything the pages read, cached: captures are found by name inside the trace root, never by path.

Cached objects are shared between sessions and must not be changed. Keys hold the capture's path and a fingerprint of
its files, so that a capture that grows or is replaced is read again.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

import fsspec
import pandas as pd
import streamlit as st

from executor.errors import HprofError
from profiler.capture import Capture, CaptureSummary, list_captures
from profiler.findings import Finding, find
from profiler.manifest import MANIFEST_NAME
from profiler.metrics import Tables, layer_figures, load_tables, pass_figures, ubatch_figures
from profiler.metrics.timeline import Timeline, load_timeline
from profiler.report.build import build_report
from profiler.report.data import Report
from profiler.schema import TABLES

Fingerprint = tuple[tuple[int, int], ...]
_LineKey = tuple[str, Fingerprint, int | None]
DEFAULT_ROOT: Final = "traces"
_MAX_LINES: Final = 4  # of five million events, each takes 0.3 GB


@dataclass(frozen=True, slots=True)
class TraceRoot:
    """The folder (or fsspec URL) whose captures are shown; `only` where it was given as one capture."""

    url: str
    only: str | None = None

    @property
    def is_local(self) -> bool:
        return "://" not in self.url


@dataclass(frozen=True, slots=True)
class Found:
    """A capture of the root: its name, its address, and what its files looked like just now."""

    name: str
    path: str
    fingerprint: Fingerprint


def trace_root(arguments: list[str] | None = None) -> TraceRoot:
    """The root that `hprof dashboard` passed on as `--traces`; a capture's own folder stands for that capture."""
    words = sys.argv[1:] if arguments is None else arguments
    url = words[words.index("--traces") + 1] if "--traces" in words[:-1] else DEFAULT_ROOT
    url = url.rstrip("/") or "/"
    if "://" not in url:
        url = os.path.realpath(url)
        if Path(url, MANIFEST_NAME).is_file():
            return TraceRoot(str(Path(url).parent), Path(url).name)
    return TraceRoot(url)


def captures(root: TraceRoot) -> list[CaptureSummary]:
    """The captures of the root, newest first; links that lead out of it are left out."""
    if root.only is not None:
        found = [one for one in list_captures(root.url) if one.name == root.only]
    else:
        found = list_captures(root.url)
    return [one for one in found if not root.is_local or is_inside(one.path, root.url)]


def find_capture(root: TraceRoot, name: str) -> Found:
    """The capture of this name. The name may come from anywhere: it is looked up among the root's, never joined.

    Raises HprofError where there is none.
    """
    for one in captures(root):
        if one.name == name:
            return Found(one.name, one.path, fingerprint(one.path))
    raise HprofError(f"there is no capture '{name}' in {root.url}; choose one on the left.")


def is_inside(path: str, root: str) -> bool:
    """Whether the path, with its links followed, lies in the root."""
    return Path(path).resolve().is_relative_to(Path(root).resolve())


def fingerprint(path: str) -> Fingerprint:
    """Times and sizes of the manifest and of each table's parts; a part that is rewritten in place changes them."""
    if "://" not in path:
        manifest = Path(path, MANIFEST_NAME).stat()
        return ((manifest.st_mtime_ns, manifest.st_size), *(_of_folder(Path(path, table)) for table in TABLES))
    fs, at = fsspec.core.url_to_fs(f"{path}/{MANIFEST_NAME}")
    return ((hash(str(sorted(fs.info(at).items()))), 0),)


def _of_folder(folder: Path) -> tuple[int, int]:
    """The newest time, and the bytes of all files."""
    if not folder.is_dir():
        return 0, 0
    with os.scandir(folder) as entries:
        found = [entry.stat(follow_symlinks=False) for entry in entries]
    newest_ns = max(one.st_mtime_ns for one in [*found, folder.stat()])
    return newest_ns, sum(one.st_size for one in found)


def open_capture(found: Found) -> Capture:
    """Open it (cheap: tables are read when asked for)."""
    return _capture(found.path, found.fingerprint)


@st.cache_resource(max_entries=16, show_spinner=False)
def _capture(path: str, fingerprint: Fingerprint) -> Capture:  # noqa: ARG001 - a part of the key
    return Capture.open(path)


def report(found: Found, baseline: str | None = None) -> Report:
    """The capture's report without its findings, with this arm as the baseline (null: the capture's own)."""
    return _report(found.path, found.fingerprint, baseline)


@st.cache_resource(max_entries=12, show_spinner="Judging the capture …")
def _report(path: str, fingerprint: Fingerprint, baseline: str | None, *, with_events: bool = True) -> Report:
    capture = Capture.open(path)
    arms = capture.manifest.arms
    if baseline is not None and arms and arms[0].name != baseline:
        first = [arm for arm in arms if arm.name == baseline]
        rest = [arm for arm in arms if arm.name != baseline]
        capture.manifest = capture.manifest.with_changes(arms=[*first, *rest])
    tables = _tables(path, fingerprint) if with_events else load_tables(capture, with_events=False)
    return build_report(capture, tables=tables, findings=())


def n_events(found: Found) -> int:
    """How many events the capture holds."""
    return _n_events(found.path, found.fingerprint)


@st.cache_resource(max_entries=16, show_spinner=False)
def _n_events(path: str, fingerprint: Fingerprint) -> int:
    return _capture(path, fingerprint).n_rows("events")


def headline(found: Found, baseline: str | None = None) -> Report:
    """As `report`, but in no time for captures of any size: figures that are made of events are null."""
    return _report(found.path, found.fingerprint, baseline, with_events=False)


def findings(found: Found) -> Sequence[Finding]:
    """What someone should change; apart from the report, for it takes longer on large captures."""
    return _findings(found.path, found.fingerprint)


@st.cache_resource(max_entries=12, show_spinner="Looking for what could be better …")
def _findings(path: str, fingerprint: Fingerprint) -> Sequence[Finding]:
    return find(_capture(path, fingerprint))


@st.cache_resource(max_entries=4, show_spinner="Reading the capture …")
def _tables(path: str, fingerprint: Fingerprint, *, by_layer: bool = False) -> Tables:
    """Ubatches and layers take longer, and only their own pages want them."""
    return load_tables(_capture(path, fingerprint), by_layer=by_layer)


def figures_of_passes(found: Found) -> pd.DataFrame:
    """`pass_figures` of whole passes, beside the columns of the `passes` table."""
    return _figures_of_passes(found.path, found.fingerprint)


@st.cache_resource(max_entries=8, show_spinner=False)
def _figures_of_passes(path: str, fingerprint: Fingerprint) -> pd.DataFrame:
    read = _tables(path, fingerprint)
    passes = read.passes.to_pandas().set_index("pass_id", drop=False)
    figures = pass_figures(*read)["pass"]
    joined: pd.DataFrame = passes.join(figures.drop(columns=[name for name in figures if name in passes]))
    return joined


def figures_of_ubatches(found: Found) -> pd.DataFrame:
    """`ubatch_figures` of every pass."""
    return _figures_of_ubatches(found.path, found.fingerprint)


@st.cache_resource(max_entries=8, show_spinner=False)
def _figures_of_ubatches(path: str, fingerprint: Fingerprint) -> pd.DataFrame:
    read = _tables(path, fingerprint, by_layer=True)
    return ubatch_figures(read.ubatches, read.recording)


def figures_of_layers(found: Found) -> pd.DataFrame:
    """`layer_figures` of every pass."""
    return _figures_of_layers(found.path, found.fingerprint)


@st.cache_resource(max_entries=8, show_spinner=False)
def _figures_of_layers(path: str, fingerprint: Fingerprint) -> pd.DataFrame:
    return layer_figures(_tables(path, fingerprint, by_layer=True).recording)


def lines_of_passes(found: Found, pass_ids: Sequence[int | None]) -> list[Timeline]:
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
    """The timelines used last; Streamlit's own cache cannot be filled from several threads."""

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
