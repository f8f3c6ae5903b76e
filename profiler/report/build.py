"""Judges a capture: gathers its figures, intervals, verdicts, findings and warnings into a Report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from executor.errors import HprofError
from executor.units import format_bytes
from profiler.arithmetic.stats import DEFAULT_NOISE
from profiler.capture import Capture
from profiler.facts import processors
from profiler.findings import Finding, find
from profiler.manifest import Manifest
from profiler.metrics import CaptureTables, DeviceFigures, Scope, device_figures, load_tables, pass_figures
from profiler.metrics.ordering import check_ordering
from profiler.ordering.check import check_capture
from profiler.plain_text import printable
from profiler.report.arm_passes import CellArms, arm_passes
from profiler.report.cells import Cell
from profiler.report.doubts import old_steps_warnings, outlier_warnings
from profiler.report.judged_cells import judge_cells
from profiler.report.manifest_lines import allocation_notes, bench_lines, recorded_lines
from profiler.report.measured import what_was_measured
from profiler.report.noticed import what_was_noticed
from profiler.report.report import Report
from profiler.report.residency import all_residency, budget_lines
from profiler.report.small_ubatches import with_small_ubatches
from profiler.report.summary import summarise


def build_report(
    capture: Capture,
    noise: float = DEFAULT_NOISE,
    measured: MeasuredCapture | None = None,
    findings: Sequence[Finding] | None = None,
) -> Report:
    """The report of one capture; `noise` is the relative change that counts as none. Raises HprofError.

    measured, findings: the capture's own, where they are at hand already; with findings, the intervals' order is not
    checked again.
    """
    manifest = capture.manifest
    ordering = check_ordering(capture) if findings is None else None
    measured = measured or measure(capture, load_tables(capture, by_layer=False))
    cells = judge_cells(
        measured.cells,
        manifest,
        is_routed=measured.is_routed,
        tokens_route=measured.is_routed and not is_routing_given(manifest),
        noise=noise,
    )
    cells = with_small_ubatches(cells, manifest.arms)
    doubts = [*measured.doubts, *_arm_notes(manifest), *outlier_warnings(measured.cells, manifest)]
    report = Report(
        capture=capture.path,
        state=manifest.state,
        source=manifest.source,
        baseline=_baseline(manifest, cells),
        model=model_label(manifest.model),
        machine=machine_label(manifest),
        created_utc=manifest.created_utc or None,
        link_h2d_gb_s=manifest.link_h2d_gb_s,
        arms=manifest.arms,
        cells=cells,
        devices=measured.devices,
        findings=find(capture, ordering) if findings is None else findings,
        ordering=ordering,
        check=check_capture(capture) if findings is None and capture.n_rows("ordering") else None,
        noticed=what_was_noticed(manifest, cells, ordering),
        warnings=[*capture.warnings, *doubts],
        faults=manifest.faults,
        notes=[*(str(note) for note in _list(manifest.model.get("notes"))), *allocation_notes(manifest)],
        cannot_say=manifest.cannot_say,
        has_unrecorded_copies=manifest.has_unrecorded_copies,
        dropped=manifest.dropped,
        residency=all_residency(manifest),
        budgets=budget_lines(manifest),
        recorded=list(recorded_lines(manifest)),
        engine=list(bench_lines(manifest)),
        measured=what_was_measured(manifest),
        argv=manifest.argv,
    )
    return replace(report, summary=printable(summarise(report)))  # it is what people print


@dataclass(frozen=True, slots=True)
class MeasuredCapture:
    """What a report takes from a capture's tables, whichever arm is the baseline."""

    figures: dict[Scope, pd.DataFrame]  # `pass_figures`
    cells: CellArms
    is_routed: bool  # whether experts were chosen
    devices: list[DeviceFigures]
    doubts: list[str]  # sentences on what events and windows say against the figures


def measure(capture: Capture, tables: CaptureTables) -> MeasuredCapture:
    """What the capture's tables say. Events are not kept: of 10 M they would take another GB beside the findings."""
    manifest, n_impossible = capture.manifest, tables.recording.n_impossible
    impossible = [f"{n_impossible:,} events have impossible times and count nowhere."] if n_impossible else []
    figures = pass_figures(*tables)
    return MeasuredCapture(
        figures,
        arm_passes(tables, figures, manifest),
        tables.experts.num_rows > 0,
        device_figures(tables.recording),
        [*impossible, *old_steps_warnings(manifest, tables.passes)],
    )


def judge(capture: str, noise: float = DEFAULT_NOISE) -> Report | HprofError:
    """The report of the capture at this address, or the error that says why there is none: for many at a time."""
    try:
        return build_report(Capture.open(capture), noise)
    except HprofError as error:
        return error


def is_routing_given(manifest: Manifest) -> bool:
    """Whether a routing model or a recorded trace chose the experts, by position, and not the model's own router."""
    return isinstance(manifest.model.get("routing"), str)


def _baseline(manifest: Manifest, cells: list[Cell]) -> str | None:
    if cells:
        return cells[0].baseline
    return manifest.arms[0].name if manifest.arms else None


def _arm_notes(manifest: Manifest) -> list[str]:
    """Each note once, with the arms that it is about; one that is a warning of the whole capture is not repeated."""
    arms_of: dict[str, list[str]] = {}
    for arm in manifest.arms:
        for note in arm.notes:
            if note not in manifest.warnings:
                arms_of.setdefault(note.rstrip("."), []).append(arm.name)
    return [f"{'Arm' if len(arms) == 1 else 'Arms'} {', '.join(arms)}: {note}." for note, arms in arms_of.items()]


def model_label(model: dict[str, Any]) -> str | None:
    """The manifest's model in a few words."""
    name = model.get("name")
    if not isinstance(name, str):
        return None
    size = model.get("n_bytes")
    return f"{name}, {format_bytes(size)}" if isinstance(size, int) else name


def machine_label(manifest: Manifest) -> str | None:
    """The manifest's machine in a few words; of an imagined one what it is, and not the machine that imagined it."""
    machine, measured = manifest.machine, what_was_measured(manifest)
    if measured.is_exact:
        return f"{measured.machine or 'of the usual rates'}, device sim"
    labels, device = processors(machine), machine.get("device")
    return ", ".join([*labels, f"device {device}"] if device else labels) or None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
