"""A report as plain values: its parts as JSON of schema 1, whose keys are added and never renamed, without NaN and
infinity; and its figures as one tidy frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import pandas as pd

from profiler.arithmetic.stats import Comparison, Estimate
from profiler.findings import Finding
from profiler.manifest import ManifestArm
from profiler.metrics import DIRECTIONS, FIGURES, NO_COPIES, CopyFigures, DeviceFigures
from profiler.metrics.passes import CELL_KEYS
from profiler.report.cells import ArmFigures, Cell, DeviceMedians, Figures
from profiler.report.residency import Residency, host_products

_INT64_END: Final = 2**63
_COLUMNS: Final = [
    *CELL_KEYS,
    *("arm", "phase", "figure", "median", "low", "high", "n"),
    *("baseline", "ratio", "ratio_low", "ratio_high", "verdict"),
]
_NUMBERS: Final = ["median", "low", "high", "ratio", "ratio_low", "ratio_high"]


def arm_as_json(arm: ManifestArm, residency: Residency | None) -> dict[str, Any]:
    """One arm: its policy, and what it kept where."""
    return {
        "name": arm.name,
        "requested": arm.requested,
        "effective": arm.effective,
        "notes": arm.notes,
        "host_products": host_products(arm),
        "memory": asdict(residency) if residency is not None else None,
    }


def cell_as_json(cell: Cell) -> dict[str, Any]:
    """One cell, its arms and how they compare."""
    return {
        "n_prompt": cell.n_prompt,
        "n_gen": cell.n_gen,
        "n_ubatch": cell.n_ubatch,
        "n_depth": cell.n_depth,
        "baseline": cell.baseline,
        "same_tokens": cell.same_tokens,
        "bit_identical": cell.bit_identical,
        "notes": [*cell.faults, *cell.notes],
        "arms": {name: _arm(arm) for name, arm in cell.arms.items()},
        "against_baseline": {name: _comparisons(found) for name, found in cell.against_baseline.items()},
        "own_baselines": cell.own_baselines,
        "against_own_baseline": {name: _comparisons(found) for name, found in cell.against_own.items()},
    }


def _arm(arm: ArmFigures) -> dict[str, Any]:
    return {
        **_figures(arm.figures["pass"]),
        "prefill": _figures(arm.figures["prefill"]),
        "decode": _figures(arm.figures["decode"]),
        "n_passes": arm.n_passes,
        "hidden_ratio_of_all_passes": number(arm.hidden_of_all),
        "by_device": [_on_device(found) for found in arm.by_device],
        "readings": _readings(arm.figures["pass"]),
    }


def _on_device(found: DeviceMedians) -> dict[str, Any]:
    return {name: None if value is None else number(value) for name, value in asdict(found).items()}


def _figures(figures: Figures) -> dict[str, Any]:
    return {name: _estimate(figures[name]) for name in FIGURES if name in figures}


def _readings(figures: Figures) -> dict[str, Any]:
    return {name: _estimate(found) for name, found in figures.items() if name not in FIGURES}


def _estimate(found: Estimate | None) -> dict[str, Any] | None:
    if found is None:
        return None
    bounds = {"median": number(found.median), "low": number(found.low), "high": number(found.high)}
    return bounds | {"n": found.n, "outliers": found.n_outliers}


def _comparisons(found: Mapping[str, Comparison | None]) -> dict[str, Any]:
    return {name: _comparison(comparison) for name, comparison in found.items()}


def _comparison(found: Comparison | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {name: number(value) if isinstance(value, float) else value for name, value in asdict(found).items()}


def device_as_json(device: DeviceFigures, *, tells_copies: bool = True) -> dict[str, Any]:
    """What one device computed and copied; without `tells_copies` a direction that has no rows is unknown, not none."""
    compute = {"kernels": device.kernels, "busy_ns": device.compute_busy_ns, "streams": device.compute_streams}
    absent = _copies(NO_COPIES) if tells_copies else dict.fromkeys(_copies(NO_COPIES))
    copies = {name: _copies(device.copies[name]) if name in device.copies else absent for name in DIRECTIONS}
    return {"process": device.process, "device": device.device, "compute": compute, "copies": copies}


def _copies(found: CopyFigures) -> dict[str, Any]:
    figures = asdict(found) | {"exposed_ns": found.exposed_ns}
    return {name: number(value) if isinstance(value, float) else value for name, value in figures.items()}


def finding_as_json(finding: Finding) -> dict[str, Any]:
    """One finding, with its evidence and advice, and where on the timeline it is seen best."""
    told = {name: getattr(finding, name) for name in ("rule", "severity", "evidence", "advice")}
    return told | {"moments": [asdict(moment) for moment in finding.moments]}


def number(value: float | None) -> float | int | None:
    """Whole numbers as integers, so that nanoseconds and bytes read as such; no NaN, no infinity.

    Beyond 64 bits, which no JSON reader need take as an integer, they stay as they are.
    """
    if value is None or not math.isfinite(value):
        return None
    return int(value) if abs(value) < _INT64_END and float(value).is_integer() else float(value)


def report_frame(cells: Sequence[Cell]) -> pd.DataFrame:
    """One row a figure of an arm in a cell and phase; NaN where an interval or a comparison is not known."""
    frame = pd.DataFrame([row for cell in cells for row in _rows(cell)], columns=_COLUMNS)
    frame[_NUMBERS] = frame[_NUMBERS].astype(float)
    return frame


def _rows(cell: Cell) -> Iterator[tuple[object, ...]]:
    for name, arm in cell.arms.items():
        for phase, figures in arm.figures.items():
            known = ((figure, found) for figure, found in figures.items() if found is not None)
            for figure, found in known:
                judged = cell.against_baseline.get(name, {}).get(figure) if phase == "pass" else None
                against: tuple[object, ...] = (None,) * 5
                if judged is not None:
                    against = (cell.baseline, judged.ratio, judged.low, judged.high, judged.verdict)
                measured = (found.median, found.low, found.high, found.n)
                yield (*cell.sizes, name, phase, figure, *measured, *against)
