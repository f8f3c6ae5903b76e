"""What the pages read of a capture, cached.

Cached objects are shared between sessions and must not be changed. Keys hold the capture's path and a fingerprint of
its files, so that a capture that grows or is replaced is read again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd
import streamlit as st

from dashboard.trace_root import CaptureRef, Fingerprint
from profiler.capture import Capture
from profiler.findings import Finding, find
from profiler.metrics import CaptureTables, Scope, layer_figures, load_tables, ubatch_figures
from profiler.report.build import MeasuredCapture, build_report, measure
from profiler.report.report import Report


def open_capture(found: CaptureRef) -> Capture:
    """Open it (cheap: tables are read when asked for)."""
    return _capture(found.key, found.fingerprint)


@st.cache_resource(max_entries=16, show_spinner=False)
def _capture(key: bytes, fingerprint: Fingerprint) -> Capture:  # noqa: ARG001 - a part of the key
    return Capture.open(os.fsdecode(key))


def report(found: CaptureRef, baseline: str | None = None) -> Report:
    """The capture's report without its findings, with this arm as the baseline (null: the capture's own)."""
    return _report(found.key, found.fingerprint, baseline)


@st.cache_resource(max_entries=12, show_spinner="Judging the capture …")
def _report(key: bytes, fingerprint: Fingerprint, baseline: str | None, *, with_events: bool = True) -> Report:
    capture = copy(_capture(key, fingerprint))  # it knows what reading its tables has shown
    arms = capture.manifest.arms
    if baseline is not None and arms and arms[0].name != baseline:
        first = [arm for arm in arms if arm.name == baseline]
        rest = [arm for arm in arms if arm.name != baseline]
        capture.manifest = capture.manifest.with_changes(arms=[*first, *rest])
    return build_report(capture, measured=_measured(key, fingerprint, with_events=with_events), findings=())


def _measured(key: bytes, fingerprint: Fingerprint, *, with_events: bool) -> MeasuredCapture:
    """What the report is made of, whichever arm is the baseline."""
    return _read(key, fingerprint).measured if with_events else _told(key, fingerprint)


@st.cache_resource(max_entries=8, show_spinner=False)
def _told(key: bytes, fingerprint: Fingerprint) -> MeasuredCapture:
    capture = _capture(key, fingerprint)
    return measure(capture, load_tables(capture, with_events=False))


def n_events(found: CaptureRef) -> int:
    """How many events the capture holds."""
    return _n_events(found.key, found.fingerprint)


@st.cache_resource(max_entries=16, show_spinner=False)
def _n_events(key: bytes, fingerprint: Fingerprint) -> int:
    return _capture(key, fingerprint).n_rows("events")


def has_layers(found: CaptureRef) -> bool:
    """Whether any event says which layer it belongs to."""
    return _has_layers(found.key, found.fingerprint)


@st.cache_resource(max_entries=16, show_spinner=False)
def _has_layers(key: bytes, fingerprint: Fingerprint) -> bool:
    capture = _capture(key, fingerprint)
    if capture.manifest.source == "hprof":  # its events do
        return capture.n_rows("events") > 0
    return any(part["layer"].null_count < len(part) for part in capture.tables("events", ["layer"]))


def headline(found: CaptureRef, baseline: str | None = None) -> Report:
    """As `report`, but in no time for captures of any size: figures that are made of events are null."""
    return _report(found.key, found.fingerprint, baseline, with_events=False)


def findings(found: CaptureRef) -> Sequence[Finding]:
    """What someone should change; apart from the report, for it takes longer on large captures."""
    return _findings(found.key, found.fingerprint)


@st.cache_resource(max_entries=12, show_spinner="Looking for what could be better …")
def _findings(key: bytes, fingerprint: Fingerprint) -> Sequence[Finding]:
    return find(_capture(key, fingerprint))


class _ByLayer(NamedTuple):
    ubatches: pd.DataFrame
    layers: pd.DataFrame


@dataclass(slots=True)
class _Read:
    """What was made of a capture's tables. They are let go at once: of 10 M events, when each was busy takes 0.5 GB,
    and whatever the next page reads comes on top."""

    key: bytes
    fingerprint: Fingerprint
    lock: threading.RLock = field(default_factory=threading.RLock)
    _passes: pd.DataFrame | None = None
    _measured: MeasuredCapture | None = None
    _by_layer: _ByLayer | None = None

    @property
    def measured(self) -> MeasuredCapture:
        with self.lock:
            return self._measured or self._note(self._load(by_layer=False))

    @property
    def passes(self) -> pd.DataFrame:
        """The table, in the order of the run."""
        with self.lock:
            if self._passes is None:
                self._note(self._load(by_layer=False))
            assert self._passes is not None
            return self._passes

    @property
    def by_layer(self) -> _ByLayer:
        """Ubatches and layers, both of one reading: it takes longer, and only their own pages want them."""
        with self.lock:
            if self._by_layer is None:
                tables = self._load(by_layer=True)
                if self._measured is None and tables.recording.n_rows:  # the figures of passes are the same by either
                    self._note(tables)
                self._by_layer = _ByLayer(
                    ubatch_figures(tables.ubatches, tables.recording), layer_figures(tables.recording)
                )
            return self._by_layer

    def _load(self, *, by_layer: bool) -> CaptureTables:
        capture = _capture(self.key, self.fingerprint)
        if by_layer and not (capture.n_rows("ubatches") or _has_layers(self.key, self.fingerprint)):
            return load_tables(capture, with_events=False)  # whose ubatches and layers are none as well
        with st.spinner("Reading the capture …"):
            return load_tables(capture, by_layer=by_layer)

    def _note(self, tables: CaptureTables) -> MeasuredCapture:
        self._passes = tables.passes.to_pandas()
        self._measured = measure(_capture(self.key, self.fingerprint), tables)
        return self._measured


@st.cache_resource(max_entries=8, show_spinner=False)
def _read(key: bytes, fingerprint: Fingerprint) -> _Read:
    return _Read(key, fingerprint)


def figures_of_passes(found: CaptureRef, scope: Scope = "pass") -> pd.DataFrame:
    """`pass_figures` of whole passes or of one phase, beside the other columns of the `passes` table."""
    return _figures_of_passes(found.key, found.fingerprint, scope)


@st.cache_resource(max_entries=12, show_spinner=False)
def _figures_of_passes(key: bytes, fingerprint: Fingerprint, scope: Scope) -> pd.DataFrame:
    read = _read(key, fingerprint)
    passes, figures = read.passes.set_index("pass_id", drop=False), read.measured.figures[scope]
    joined: pd.DataFrame = passes.drop(columns=[name for name in figures if name in passes]).join(figures)
    return joined


def figures_of_ubatches(found: CaptureRef) -> pd.DataFrame:
    """`ubatch_figures` of every pass."""
    return _read(found.key, found.fingerprint).by_layer.ubatches


def figures_of_layers(found: CaptureRef) -> pd.DataFrame:
    """`layer_figures` of every pass."""
    return _read(found.key, found.fingerprint).by_layer.layers
