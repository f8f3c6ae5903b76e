"""A report laid out as blocks of text and tables, in the order to show them; terminal, Markdown and HTML only draw
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from executor.units import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_factor,
    format_interval,
    format_ns,
    format_rate,
    format_value,
    number_ranges,
)
from profiler.arithmetic.stats import Comparison, Estimate
from profiler.findings import Finding
from profiler.metrics import FIGURES, CopyFigures, DeviceFigures, Figure, Scope
from profiler.report.cells import Cell, DeviceMedians
from profiler.report.residency import Residency
from profiler.report.verdicts import missing_line, times_as_fast, told_factor, verdict_word

_BY_PHASE: Final[dict[str, list[tuple[str, Scope]]]] = {
    "distinct_share": [("distinct prompt", "prefill"), ("distinct decode", "decode")],
    "copied_share": [("copied prompt", "prefill"), ("copied decode", "decode")],
}


@dataclass(frozen=True, slots=True)
class Heading:
    """What the report is of, and whether it is whole."""

    capture: str
    state: str


LineKind = Literal["fact", "answer", "warning", "note", "fault", "summary", "command"]
"""Of `command` each line is one to be copied as it is."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences, one a line."""

    kind: LineKind
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Listing:
    """A list with a title; a renderer leaves it out where it is empty."""

    title: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class FindingList:
    """The findings, the most serious first."""

    findings: Sequence[Finding]


@dataclass(frozen=True, slots=True)
class Table:
    """Text cells; the first `n_left` columns are left-aligned, the rest right."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    n_left: int = 1


Block = Heading | Lines | Listing | FindingList | Table


@dataclass(frozen=True, slots=True)
class Room:
    """What a renderer has room for."""

    max_arms: int = 5  # beside each other in one table
    max_devices: int | None = None  # None: all


ON_A_PAGE: Final = Room()


def cell_blocks(cell: Cell, room: Room, load: str | None = None) -> Iterator[Block]:
    """A cell's arms, each device's part of them, and what is to be said of its verdicts and of sameness.

    load: what else kept the machine busy, in words, where it did.
    """
    yield from cell_tables(cell, room.max_arms)
    yield from by_device_table(cell)
    yield Lines("note", list(_reasons(cell, load)))
    yield Lines("note", list(cell.not_positive_sentences()))
    yield Lines("fault", [" ".join(cell.faults)] if cell.faults else [])
    yield Lines("note", [sameness] if (sameness := " ".join(_sameness(cell))) else [])


def device_blocks(devices: Sequence[DeviceFigures], room: Room) -> Iterator[Block]:
    """A table a device, as many as there is room for; of one that copied nothing a line."""
    shown = devices[: room.max_devices]
    for device in shown:
        alone = f"{device.title}: {_kernels(device)}, no copies recorded."
        yield device_table(device) if device.copies else Lines("note", [alone])
    if len(shown) < len(devices):
        more = format_count(len(devices) - len(shown), "more device")
        yield Lines("note", [f"{more} are in `--format md` and `--json`."])


def cell_tables(cell: Cell, max_arms: int) -> Iterator[Table]:
    """The arms of a cell side by side: figures as rows, verdicts under what is judged.

    More than `max_arms` (at least 2) go into further tables, with the baseline repeated.
    """
    baseline, *others = cell.arms
    step = max(max_arms, 2) - 1
    for start in range(0, max(len(others), 1), step):
        names = [baseline, *others[start : start + step]]
        yield Table(cell.flags, ["", *names], list(_figure_rows(cell, names)))


def by_device_table(cell: Cell) -> Iterator[Table]:
    """Each arm's part on each device; no table where all ran on one."""
    columns = ["arm", "device", "copied", "busy copy", "hidden", "busy compute", "VRAM held"]
    rows = [[name, *_device_row(found)] for name, arm in cell.arms.items() for found in arm.by_device]
    if rows:
        yield Table("By device, in one pass", columns, rows)


def _device_row(found: DeviceMedians) -> list[str]:
    return [
        str(found.device),
        format_value(found.bytes_h2d, "bytes"),
        format_ns(found.busy_copy_ns),
        format_value(found.hidden_ratio, "share"),
        format_ns(found.busy_compute_ns),
        format_value(found.vram_held_bytes, "bytes"),
    ]


def _sameness(cell: Cell) -> Iterator[str]:
    """Whether the arms computed the same thing, and what else is to be known of the cell; nothing where nothing tells.

    Other tokens and bit-identical logits do not contradict each other: only logits of arms that compute in the same
    places are compared.
    """
    if cell.same_tokens is False and cell.bit_identical:
        yield "Logits of arms that compute in the same places are bit-identical."
    elif words := [
        *(["same tokens"] if cell.same_tokens else []),
        *(["logits bit-identical"] if cell.bit_identical else []),
    ]:
        yield f"Arms: {', '.join(words)}."
    yield from cell.notes


def same_work_block(cells: Sequence[Cell]) -> Lines:
    """What arms did alike by design wherever a verdict is `same work`, each thing once."""
    found = [one.reason for cell in cells for _, _, one in _unjudged(cell) if one.is_same_work and one.reason]
    alike = dict.fromkeys(part for reason in found for part in reason.partition(": ")[2].split("; "))
    return Lines("note", [f"Same work: {'; '.join(alike)}."] if alike else [])


def _unjudged(cell: Cell) -> Iterator[tuple[str, str, Comparison]]:
    """Arm, figure and comparison wherever there is a reason for no verdict."""
    judged = [*cell.against_baseline.items(), *cell.against_own.items()]
    return ((name, key, found) for name, arm in judged for key, found in arm.items() if found and found.reason)


def _reasons(cell: Cell, load: str | None) -> Iterator[str]:
    """Why no verdict is given, each reason once; of too few pairs, what was seen and what is missing. Of the same work
    nothing is uncertain.
    """
    compared = [judged for judged in _unjudged(cell) if not judged[2].is_same_work]
    if (missing := missing_line(found for _, _, found in compared)) is not None:
        seen = [f"{name} {_seen(cell, key, one)}" for name, key, one in compared if one.n_missing]
        yield f"No verdict yet: {missing}. Seen: {'; '.join(seen)}."
    reasons = dict.fromkeys(found.reason for _, _, found in compared if found.reason and not found.n_missing)
    if reasons:
        busy = f" The machine was loaded when the run began: {load}." if load else ""
        yield f"Inconclusive: {'; '.join(map(str, reasons))}.{busy}"


def _seen(cell: Cell, key: str, found: Comparison) -> str:
    """`1.46 x as fast in TTFT`."""
    figure = cell.described(key)
    return f"{format_factor(times_as_fast(found.ratio, figure.better))} x as fast in {figure.label}"


def device_table(device: DeviceFigures) -> Table:
    """One device's copies by direction, with what compute hid."""
    columns = ["copies", "count", "bytes", "GB/s", "busy", "hidden", "exposed", "memory", "streams"]
    rows = [_copies_row(direction, copies) for direction, copies in device.copies.items()]
    return Table(f"{device.title}: {_kernels(device)}", columns, rows)


def _kernels(device: DeviceFigures) -> str:
    """How many kernels ran, how long and where."""
    if not device.kernels:
        return "no kernels"
    busy = format_ns(device.compute_busy_ns)
    return f"{format_count(device.kernels, 'kernel')}, {busy} busy, stream {_streams(device.compute_streams)}"


def residency_table(residency: Mapping[str, Residency]) -> Iterator[Table]:
    """Which layers each arm keeps resident, and what slots and bank cost; no table where the capture does not say."""
    columns = ["", "resident", "in host memory", "slots", "bank", "slots and bank cost"]
    rows = [[arm, *_residency_row(found)] for arm, found in residency.items()]
    if rows:
        yield Table("Device memory by arm", columns, rows)


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


def _figure_rows(cell: Cell, names: Sequence[str]) -> Iterator[list[str]]:
    for key, figure in {**FIGURES, **cell.readings}.items():
        for label, scope in _scopes(cell, key, figure):
            found = [cell.arms[name].figures[scope][key] for name in names]
            if any(_is_telling(key, estimate) for estimate in found):
                yield [label, *(_estimate(estimate, figure.unit) for estimate in found)]
        compared = [cell.against_baseline.get(name, {}).get(key) for name in names]
        if any(compared):
            yield _compared_row(names[0], figure, compared)
        yield from _own_rows(cell, names, key, figure)
    yield ["passes", *(str(cell.arms[name].n_passes) for name in names)]


def _own_rows(cell: Cell, names: Sequence[str], key: str, figure: Figure) -> Iterator[list[str]]:
    """One row for each baseline of a further placement."""
    for first in dict.fromkeys(cell.own_baselines[name] for name in names if name in cell.own_baselines):
        mine = [cell.against_own[name].get(key) if cell.own_baselines.get(name) == first else None for name in names]
        if any(mine):
            yield _compared_row(first, figure, mine)


def _compared_row(first: str, figure: Figure, compared: Sequence[Comparison | None]) -> list[str]:
    """Under a judged figure: how many times as fast each arm is as `first`, and the verdict."""
    told = [f"{told_factor(found, figure.better)} {verdict_word(found)}" if found else "" for found in compared]
    return [f"  x as fast as {first}", *told]


def _scopes(cell: Cell, key: str, figure: Figure) -> list[tuple[str, Scope]]:
    """The rows of a figure: one for the pass, or one a phase where both have it and a mean of both would mislead."""
    phases = _BY_PHASE.get(key, [])
    if phases and all(any(arm.figures[phase][key] for arm in cell.arms.values()) for _, phase in phases):
        return phases
    return [(f"{figure.label} t/s" if figure.unit == "tokens/s" else figure.label, "pass")]


def _is_telling(key: str, found: Estimate | None) -> bool:
    """Known, and not one of the figures that are zero where there are no experts, collectives or host compute."""
    if found is None:
        return False
    return found.median > 0 or key not in ("selective_saving_bytes", "collective_ns", "host_compute_ns")


def _estimate(found: Estimate | None, unit: str) -> str:
    return UNKNOWN if found is None else format_interval(found.median, found.low, found.high, unit)


def _copies_row(direction: str, copies: CopyFigures) -> list[str]:
    return [
        direction,
        f"{copies.count:,}",
        format_value(copies.bytes, "bytes"),
        UNKNOWN if copies.gb_s is None else format_rate(copies.gb_s),
        format_ns(copies.busy_ns),
        format_value(copies.hidden_ratio, "share"),
        format_value(copies.exposed_ns, "ns"),
        ", ".join(copies.memory_kinds) or UNKNOWN,
        _streams(copies.streams),
    ]


def _streams(streams: Sequence[int | str]) -> str:
    shown = ", ".join(map(str, streams[:4]))
    return f"{shown}, and {len(streams) - 4} more" if len(streams) > 4 else shown
