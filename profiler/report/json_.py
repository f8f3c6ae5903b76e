"""A report as JSON, schema 1: keys are added, never renamed (docs/metrics.md lists the figures)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import orjson

from profiler.arithmetic.stats import Comparison, Estimate
from profiler.metrics import DIRECTIONS, NO_COPIES, CopyFigures, DeviceFigures
from profiler.report.data import ArmFigures, Cell, Figures, OnDevice, Report
from profiler.report.on_host import host_products

REPORT_SCHEMA: Final = 1


def render_json(report: Report) -> str:
    """Indented JSON text."""
    return orjson.dumps(report_as_json(report), option=orjson.OPT_INDENT_2).decode()


def render_many(reports: Sequence[Report], problems: Sequence[str]) -> str:
    """Several reports as indented JSON text; `problems` are the captures that could not be read, a sentence each."""
    found = {"schema": REPORT_SCHEMA, "reports": [report_as_json(report) for report in reports], "problems": problems}
    return orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()


def report_as_json(report: Report) -> dict[str, Any]:
    """The report as plain dicts, lists, numbers, text and None."""
    return {
        "schema": REPORT_SCHEMA,
        "capture": report.capture,
        "state": report.state,
        "source": report.source,
        "baseline": report.baseline,
        "model": report.model,
        "machine": report.machine,
        "created_utc": report.created_utc,
        "link_h2d_gb_s": _number(report.link_h2d_gb_s),
        "arms": [
            {
                "name": arm.name,
                "requested": arm.requested,
                "effective": arm.effective,
                "notes": arm.notes,
                "host_products": host_products(arm),
                "memory": asdict(report.residency[arm.name]) if arm.name in report.residency else None,
            }
            for arm in report.arms
        ],
        "cells": [_cell(cell) for cell in report.cells],
        "devices": [_device(device) for device in report.devices],
        "findings": [_finding(finding) for finding in report.findings],
        "warnings": report.warnings,
        "notes": report.notes,
        "cannot_say": report.cannot_say,
        "dropped": report.dropped,
        "budgets": report.budgets,
        "summary": report.summary,
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "n_prompt": cell.n_prompt,
        "n_gen": cell.n_gen,
        "n_ubatch": cell.n_ubatch,
        "n_depth": cell.n_depth,
        "baseline": cell.baseline,
        "same_tokens": cell.same_tokens,
        "bit_identical": cell.bit_identical,
        "notes": cell.notes,
        "arms": {name: _arm(arm) for name, arm in cell.arms.items()},
        "against_baseline": {name: _comparisons(found) for name, found in cell.against_baseline.items()},
    }


def _arm(arm: ArmFigures) -> dict[str, Any]:
    return {
        **_figures(arm.figures["pass"]),
        "prefill": _figures(arm.figures["prefill"]),
        "decode": _figures(arm.figures["decode"]),
        "n_passes": arm.n_passes,
        "by_device": [_on_device(found) for found in arm.by_device],
    }


def _on_device(found: OnDevice) -> dict[str, Any]:
    return {name: None if value is None else _number(value) for name, value in asdict(found).items()}


def _figures(figures: Figures) -> dict[str, Any]:
    return {name: _estimate(found) for name, found in figures.items()}


def _estimate(found: Estimate | None) -> dict[str, Any] | None:
    if found is None:
        return None
    bounds = {"median": _number(found.median), "low": _number(found.low), "high": _number(found.high)}
    return bounds | {"n": found.n, "outliers": found.n_outliers}


def _comparisons(found: Mapping[str, Comparison | None]) -> dict[str, Any]:
    return {name: _comparison(comparison) for name, comparison in found.items()}


def _comparison(found: Comparison | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {name: _number(value) if isinstance(value, float) else value for name, value in asdict(found).items()}


def _device(device: DeviceFigures) -> dict[str, Any]:
    compute = {"kernels": device.kernels, "busy_ns": device.compute_busy_ns, "streams": device.compute_streams}
    copies = {direction: _copies(device.copies.get(direction, NO_COPIES)) for direction in DIRECTIONS}
    return {"process": device.process, "device": device.device, "compute": compute, "copies": copies}


def _copies(found: CopyFigures) -> dict[str, Any]:
    figures = asdict(found) | {"exposed_ns": found.exposed_ns}
    return {name: _number(value) if isinstance(value, float) else value for name, value in figures.items()}


def _finding(finding: Any) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in ("rule", "severity", "evidence", "advice")}


def _number(value: float | None) -> float | int | None:
    """Whole numbers as integers, so that nanoseconds and bytes read as such; no NaN, no infinity."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else value
