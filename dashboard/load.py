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


@st.cache_resource(max_entries=8, show_spinner=False)
def _measured(key: bytes, fingerprint: Fingerprint, *, with_events: bool) -> MeasuredCapture:
    """What the report is made of, whichever arm is the baseline."""
    capture = _capture(key, fingerprint)
    tables = _tables(key, fingerprint) if with_events else load_tables(capture, with_events=False)
    return measure(capture, tables)


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


@dataclass(slots=True)
class _ReadTables:
    """What was read of a capture's tables so far: with layers or without, never both, which would take twice as much
    memory (1 GB of two traces of 10 M events)."""

    tables: CaptureTables | None = None
    by_layer: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


@st.cache_resource(max_entries=4, show_spinner=False)
def _read_tables(key: bytes, fingerprint: Fingerprint) -> _ReadTables:  # noqa: ARG001 - they are the key
    return _ReadTables()


def _tables(key: bytes, fingerprint: Fingerprint, *, by_layer: bool = False) -> CaptureTables:
    """Ubatches and layers take longer, and only their own pages want them; the other figures are the same with them."""
    read = _read_tables(key, fingerprint)
    with read.lock:
        if read.tables is None or by_layer > read.by_layer:
            read.tables = None
            with st.spinner("Reading the capture …"):
                read.tables = load_tables(_capture(key, fingerprint), by_layer=by_layer)
            read.by_layer = by_layer
        return read.tables


def figures_of_passes(found: CaptureRef, scope: Scope = "pass") -> pd.DataFrame:
    """`pass_figures` of whole passes or of one phase, beside the other columns of the `passes` table."""
    return _figures_of_passes(found.key, found.fingerprint, scope)


@st.cache_resource(max_entries=12, show_spinner=False)
def _figures_of_passes(key: bytes, fingerprint: Fingerprint, scope: Scope) -> pd.DataFrame:
    read = _tables(key, fingerprint)
    passes = read.passes.to_pandas().set_index("pass_id", drop=False)
    figures = _measured(key, fingerprint, with_events=True).figures[scope]
    joined: pd.DataFrame = passes.drop(columns=[name for name in figures if name in passes]).join(figures)
    return joined


def figures_of_ubatches(found: CaptureRef) -> pd.DataFrame:
    """`ubatch_figures` of every pass."""
    return _figures_of_ubatches(found.key, found.fingerprint)


@st.cache_resource(max_entries=8, show_spinner=False)
def _figures_of_ubatches(key: bytes, fingerprint: Fingerprint) -> pd.DataFrame:
    read = _tables(key, fingerprint, by_layer=True)
    return ubatch_figures(read.ubatches, read.recording)


def figures_of_layers(found: CaptureRef) -> pd.DataFrame:
    """`layer_figures` of every pass."""
    return _figures_of_layers(found.key, found.fingerprint)


@st.cache_resource(max_entries=8, show_spinner=False)
def _figures_of_layers(key: bytes, fingerprint: Fingerprint) -> pd.DataFrame:
    return layer_figures(_tables(key, fingerprint, by_layer=True).recording)
