"""A report's cells as flat rows, with C, T and D: what the tables and plots are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from profiler.arithmetic.stats import Comparison, Estimate
from profiler.capture import Capture
from profiler.report.build import build_report
from profiler.report.cells import ArmFigures, Cell
from profiler.report.report import Report
from profiler.report.verdicts import verdict_word

Row = dict[str, Any]


def report_of(path: str) -> Report:
    """The report of a capture."""
    return build_report(Capture.open(path))


def cell_rows(report: Report) -> list[Row]:
    """One row an arm of a cell: sizes, figures of the prefill with their intervals, decode, and the verdicts."""
    return [_row(cell, name, arm) for cell in report.cells for name, arm in cell.arms.items()]


def _row(cell: Cell, name: str, arm: ArmFigures) -> Row:
    prefill = arm.figures["prefill"]
    row: Row = {
        "n_prompt": cell.n_prompt,
        "n_gen": cell.n_gen,
        "n_ubatch": cell.n_ubatch,
        "n_depth": cell.n_depth,
        "arm": name,
        "passes": arm.n_passes,
        "same_tokens": cell.same_tokens,
        "bit_identical": cell.bit_identical,
        "copy_ms": _scaled(prefill.get("busy_copy_ns"), 1e6),
        "compute_ms": _scaled(prefill.get("busy_compute_ns"), 1e6),
        "hidden_share": _scaled(prefill.get("hidden_ratio"), 1),
        "copied_mib": _scaled(prefill.get("bytes_h2d"), 2**20),
        "distinct_share": _scaled(prefill.get("distinct_share"), 1),
        "decode_copied_mib": _scaled(arm.figures["decode"].get("bytes_h2d"), 2**20),
        "hit_rate": _scaled(arm.figures["decode"].get("cache_hit_rate"), 1),
        "vram_gib": _scaled(arm.figures["pass"].get("vram_peak_bytes"), 2**30),
    }
    for short, figure, scale in (
        ("ttft_ms", "ttft_ns", 1e6),
        ("prefill", "prefill_tokens_per_s", 1.0),
        ("decode", "decode_tokens_per_s", 1.0),
    ):
        row |= _with_interval(short, arm.figures["pass"].get(figure), scale)
        row |= _against(short, cell.against_baseline.get(name, {}).get(figure))
    return row


def _scaled(found: Estimate | None, unit: float) -> float | None:
    return None if found is None else found.median / unit


def _with_interval(name: str, found: Estimate | None, unit: float) -> Row:
    if found is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    low, high = found.low, found.high
    return {
        name: found.median / unit,
        f"{name}_low": None if low is None else low / unit,
        f"{name}_high": None if high is None else high / unit,
    }


def _against(name: str, found: Comparison | None) -> Row:
    keys = ("ratio", "ratio_low", "ratio_high", "verdict", "word")
    values = (None,) * 5 if found is None else (found.ratio, found.low, found.high, found.verdict, verdict_word(found))
    return {f"{name}_{key}": value for key, value in zip(keys, values, strict=True)}


def by_cell(rows: Iterable[Row]) -> list[dict[str, Row]]:
    """The arms of each cell, by name."""
    cells: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        key = tuple(row[axis] for axis in ("n_prompt", "n_gen", "n_ubatch", "n_depth"))
        cells.setdefault(key, {})[row["arm"]] = row
    return list(cells.values())
