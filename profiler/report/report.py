"""A report, as plain data: the renderers only lay it out, and read nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from profiler.findings import Finding
from profiler.manifest import Arm
from profiler.metrics import DeviceFigures
from profiler.report.data import Cell
from profiler.report.json_parts import arm_as_json, cell_as_json, device_as_json, finding_as_json, number
from profiler.report.residency import Residency

REPORT_SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that `hprof report` shows of one capture."""

    capture: str  # the capture's address
    state: str
    source: str
    baseline: str | None
    model: str | None
    machine: str | None
    created_utc: str | None
    link_h2d_gb_s: float | None  # measured ceiling of host to device copies
    arms: list[Arm]  # requested and effective policies
    cells: list[Cell]
    devices: list[DeviceFigures]
    findings: Sequence[Finding]
    warnings: list[str]
    notes: list[str]  # what is approximated
    cannot_say: list[str]
    dropped: dict[str, int]
    residency: dict[str, Residency] = field(default_factory=dict)  # by arm, where the capture says
    budgets: list[str] = field(default_factory=list)  # what `--vram-budget` left for weights, in words
    summary: str = ""  # the closing paragraph, in plain words

    def to_json(self) -> dict[str, Any]:
        """The JSON contract of `hprof report --json` (schema 1) as plain dicts; no NaN, no infinity."""
        return {
            "schema": REPORT_SCHEMA,
            "capture": self.capture,
            "state": self.state,
            "source": self.source,
            "baseline": self.baseline,
            "model": self.model,
            "machine": self.machine,
            "created_utc": self.created_utc,
            "link_h2d_gb_s": number(self.link_h2d_gb_s),
            "arms": [arm_as_json(arm, self.residency.get(arm.name)) for arm in self.arms],
            "cells": [cell_as_json(cell) for cell in self.cells],
            "devices": [device_as_json(device) for device in self.devices],
            "findings": [finding_as_json(finding) for finding in self.findings],
            "warnings": self.warnings,
            "notes": self.notes,
            "cannot_say": self.cannot_say,
            "dropped": self.dropped,
            "budgets": self.budgets,
            "summary": self.summary,
        }
