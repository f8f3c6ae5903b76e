"""A report laid out as blocks of text and tables, in the order to show them; terminal, Markdown and HTML only draw
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from executor.units import format_bytes, format_gb_s, format_ns, format_rate, format_share, format_value, number_ranges
from profiler.arithmetic.stats import Comparison, Estimate
from profiler.metrics import FIGURES, CopyFigures, DeviceFigures, Scope
from profiler.report.cells import Cell, DeviceMedians
from profiler.report.places import Residency, products_line
from profiler.report.report import Report
from profiler.report.summary import device_name, memory_kinds

MAX_ARMS: Final = 5
UNKNOWN: Final = "–"
_BY_PHASE: Final[dict[str, list[tuple[str, Scope]]]] = {
    "distinct_share": [("distinct prompt", "prefill"), ("distinct decode", "decode")]
}


@dataclass(frozen=True, slots=True)
class Table:
    """Text cells; the first column is left-aligned, the rest right."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def cell_tables(cell: Cell, max_arms: int = MAX_ARMS) -> Iterator[Table]:
    """The arms of a cell side by side: figures as rows, verdicts under what is judged.

    More than `max_arms` (at least 2) go into further tables, with the baseline repeated.
    """
    baseline, *others = cell.arms
    step = max(max_arms, 2) - 1
    for start in range(0, max(len(others), 1), step):
        names = [baseline, *others[start : start + step]]
        yield Table(cell.flags, ["", *names], list(_figure_rows(cell, names)))


def by_device_table(cell: Cell) -> Table | None:
    """Each arm's part on each device; null where all ran on one."""
    columns = ["arm", "device", "copied", "busy copy", "hidden", "busy compute", "VRAM held"]
    rows = [[name, *_device_row(found)] for name, arm in cell.arms.items() for found in arm.by_device]
    return Table("By device, in one pass", columns, rows) if rows else None


def _device_row(found: DeviceMedians) -> list[str]:
    return [
        str(found.device),
        UNKNOWN if found.bytes_h2d is None else format_bytes(found.bytes_h2d),
        format_ns(found.busy_copy_ns),
        format_share(found.hidden_copy_ns / found.busy_copy_ns) if found.busy_copy_ns else UNKNOWN,
        format_ns(found.busy_compute_ns),
        UNKNOWN if found.vram_held_bytes is None else format_bytes(found.vram_held_bytes),
    ]


def sameness_line(cell: Cell) -> str | None:
    """Whether the arms computed the same thing; null where that cannot be told."""
    words = [
        _said(cell.same_tokens, "same tokens", "TOKENS DIFFER"),
        _said(cell.bit_identical, "logits bit-identical", "LOGITS DIFFER"),
    ]
    line = ", ".join(word for word in words if word)
    return " ".join([f"Arms: {line}." if line else "", *cell.notes]).strip() or None


def ordering_line(report: Report) -> str | None:
    """Whether the recorded intervals keep the order that the engine needs; None where nobody looked."""
    if report.ordering is None:
        return None
    line = report.ordering.line()
    return f"{line[0].upper()}{line[1:]}."


def reasons_line(cell: Cell) -> str | None:
    """Why verdicts are inconclusive, each reason once."""
    judged = [*cell.against_baseline.values(), *cell.against_own.values()]
    compared = [found for arm in judged for found in arm.values() if found and found.reason]
    reasons = dict.fromkeys(found.reason for found in compared)
    return f"Inconclusive: {'; '.join(filter(None, reasons))}." if reasons else None


def _said(fact: bool | None, yes: str, no: str) -> str:
    return "" if fact is None else (yes if fact else no)


def device_tables(devices: Sequence[DeviceFigures]) -> Iterator[Table]:
    """One table a device: its copies by direction, with what compute hid."""
    columns = ["copies", "count", "bytes", "GB/s", "busy", "hidden", "exposed", "memory", "streams"]
    for device in devices:
        rows = [_copies_row(direction, copies) for direction, copies in device.copies.items()]
        yield Table(f"{device_name(device)}: {kernels(device)}", columns, rows)


def kernels(device: DeviceFigures) -> str:
    """How many kernels ran, how long and where."""
    if not device.kernels:
        return "no kernels"
    count = "1 kernel" if device.kernels == 1 else f"{device.kernels:,} kernels"
    return f"{count}, {format_ns(device.compute_busy_ns)} busy, stream {_streams(device.compute_streams)}"


def residency_table(report: Report) -> Table | None:
    """Which layers each arm keeps resident, and what slots and bank cost; null where the capture does not say."""
    columns = ["", "resident", "in host memory", "slots", "bank", "slots and bank cost"]
    rows = [[arm, *_residency_row(found)] for arm, found in report.residency.items()]
    return Table("Device memory by arm", columns, rows) if rows else None


def _residency_row(found: Residency) -> list[str]:
    whole = f" of {found.n_layers}" if found.n_layers else ""
    named = f"{len(found.host_layers)}{whole} layers ({number_ranges(found.host_layers)})"
    on_host = f"{format_bytes(found.host_bytes)} of {named}" if found.host_layers else "none"
    cost = UNKNOWN if found.cost_in_layers is None else f"{found.cost_in_layers:.1f} layers"
    return [
        format_bytes(found.resident_bytes),
        on_host,
        f"{found.slots}, {format_bytes(found.slots_bytes)}" if found.slots_bytes else "none",
        format_bytes(found.bank_bytes) if found.bank_bytes else "none",
        cost if found.slots_bytes + found.bank_bytes else "nothing",
    ]


def header_lines(report: Report) -> list[str]:
    """What was measured, where, and which policies served it."""
    link = format_gb_s(report.link_h2d_gb_s) if report.link_h2d_gb_s else None
    parts = {"model": report.model, "machine": report.machine, "link, host to device": link, "source": report.source}
    lines = ["; ".join(f"{name}: {value}" for name, value in parts.items() if value)]
    served = [f"{arm.name} ran as {arm.effective}" for arm in report.arms if arm.effective not in (None, arm.requested)]
    lines += [f"Requested and effective policy differ: {'; '.join(served)}."] if served else []
    on_host = products_line(report.arms)
    return [*lines, *report.budgets, *([on_host] if on_host else [])]


def _figure_rows(cell: Cell, names: Sequence[str]) -> Iterator[list[str]]:
    for key, figure in FIGURES.items():
        for label, scope in _scopes(cell, key):
            found = [cell.arms[name].figures[scope][key] for name in names]
            if any(_is_telling(key, estimate) for estimate in found):
                yield [label, *(_estimate(estimate, figure.unit) for estimate in found)]
        compared = [cell.against_baseline.get(name, {}).get(key) for name in names]
        if any(compared):
            yield [f"  against {names[0]}", *map(_comparison, compared)]
        yield from _own_rows(cell, names, key)
    yield ["passes", *(str(cell.arms[name].n_passes) for name in names)]


def _own_rows(cell: Cell, names: Sequence[str], key: str) -> Iterator[list[str]]:
    """One row for each baseline of a further placement."""
    for first in dict.fromkeys(cell.own_baselines[name] for name in names if name in cell.own_baselines):
        mine = [cell.against_own[name].get(key) if cell.own_baselines.get(name) == first else None for name in names]
        if any(mine):
            yield [f"  against {first}", *map(_comparison, mine)]


def _scopes(cell: Cell, key: str) -> list[tuple[str, Scope]]:
    """The rows of a figure: one for the pass, or one a phase where both have it and a mean of both would mislead."""
    phases = _BY_PHASE.get(key, [])
    if phases and all(any(arm.figures[phase][key] for arm in cell.arms.values()) for _, phase in phases):
        return phases
    figure = FIGURES[key]
    return [(f"{figure.label} t/s" if figure.unit == "tokens/s" else figure.label, "pass")]


def _is_telling(key: str, found: Estimate | None) -> bool:
    """Known, and not one of the figures that are always zero where there are no experts and no host compute."""
    if found is None:
        return False
    return found.median > 0 or key not in ("selective_saving_bytes", "host_compute_ns")


def _estimate(found: Estimate | None, unit: str) -> str:
    if found is None:
        return UNKNOWN
    value = format_value(found.median, unit)
    if found.low is None or found.high is None or found.low == found.high:
        return value
    return f"{value} [{format_value(found.low, unit)}, {format_value(found.high, unit)}]"


def _comparison(found: Comparison | None) -> str:
    if found is None:
        return ""
    bounds = f" [{found.low:.3f}, {found.high:.3f}]" if found.low is not None and found.high is not None else ""
    return f"x{found.ratio:.3f}{bounds} {found.verdict}"


def _copies_row(direction: str, copies: CopyFigures) -> list[str]:
    return [
        direction,
        f"{copies.count:,}",
        format_bytes(copies.bytes) if copies.bytes is not None else UNKNOWN,
        format_rate(copies.gb_s) if copies.gb_s is not None else UNKNOWN,
        format_ns(copies.busy_ns),
        format_share(copies.hidden_ns / copies.busy_ns) if copies.busy_ns else UNKNOWN,
        format_ns(copies.exposed_ns),
        ", ".join(memory_kinds(copies)) or UNKNOWN,
        _streams(copies.streams),
    ]


def _streams(streams: Sequence[int | str]) -> str:
    shown = ", ".join(map(str, streams[:4]))
    return f"{shown}, and {len(streams) - 4} more" if len(streams) > 4 else shown
