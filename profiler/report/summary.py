"""The closing paragraph: what was copied, how fast, how much of it was hidden, what bounds the pass, what helped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profiler.metrics import CopyFigures, DeviceFigures, Scope
from profiler.report.against import said_against, said_over_cells
from profiler.report.best import best_arms, said_best
from profiler.report.data import ArmFigures, Cell
from profiler.report.report import Report
from profiler.report.units import format_bytes, format_gb_s, format_ns, format_share

_MAX_ARMS = 4
_NEAR = 0.1  # copy and compute within a tenth of each other: neither bounds alone


def summarise(report: Report) -> str:
    """A few sentences in plain words about the telling cell, or about the devices where there are no passes."""
    if report.cells:
        cell = telling_cell(report.cells)
        return " ".join([*_cell_sentences(cell, report), *said_over_cells(report.cells)])
    if report.devices:
        return " ".join(_device_sentences(report.devices, report.link_h2d_gb_s))
    return "There is nothing to judge: no completed pass, and no copy or kernel on a device."


def telling_cell(cells: Sequence[Cell]) -> Cell:
    """The cell to speak about: most arms compared, then most tokens."""
    return max(cells, key=lambda cell: (len(cell.arms), cell.n_prompt or 0, cell.n_ubatch or 0))


def describe_cell(cell: Cell) -> str:
    """The cell's sizes in words."""
    parts = [
        f"{cell.n_prompt} prompt tokens" if cell.n_prompt else None,
        f"{cell.n_gen} generated" if cell.n_gen else None,
        f"ubatches of {cell.n_ubatch}" if cell.n_ubatch else None,
        f"depth {cell.n_depth}" if cell.n_depth else None,
    ]
    return ", ".join(part for part in parts if part) or "a pass of unknown size"


def _cell_sentences(cell: Cell, report: Report) -> Iterator[str]:
    told = list(dict.fromkeys([*list(cell.arms)[:_MAX_ARMS], *best_arms(cell, report.arms).values()]))
    copying = [text for name in told if (text := _copied(name, cell.arms[name], report.link_h2d_gb_s))]
    if copying:
        yield f"In one pass ({describe_cell(cell)}), {'; '.join(copying)}."
    if bound := _bound(cell, len({device.device for device in report.devices})):
        yield bound
    for name in told[1:]:
        yield from said_against(report, cell, name)
    yield from said_best(cell, report.arms)
    if more := len(cell.arms) - len(told):
        yield f"{more} more {'arm is' if more == 1 else 'arms are'} in the table."


def _copied(name: str, arm: ArmFigures, link_gb_s: float | None) -> str | None:
    n_bytes, busy_ns = arm.median("bytes_h2d"), arm.median("busy_copy_ns")
    hidden = arm.median("hidden_ratio")
    if n_bytes is None:
        return None
    if n_bytes == 0:
        return f"{name} copied nothing to the device"
    if not busy_ns:
        return f"{name} copied {format_bytes(n_bytes)} to the device"
    speed = n_bytes / busy_ns
    share = f" ({speed / link_gb_s * 100:.0f} % of the link's {format_gb_s(link_gb_s)})" if link_gb_s else ""
    shown = f", {format_share(hidden)} of it hidden behind compute" if hidden is not None else ""
    return f"{name} copied {format_bytes(n_bytes)} to the device at {format_gb_s(speed)}{share}{shown}"


def _bound(cell: Cell, n_devices: int) -> str | None:
    """What bounds the arm that hides most of its copies: no overlap can beat the larger part.

    Of a pass with a prompt it is the prompt that copies, so its figures are held against the time to first token.
    Several devices work beside each other, and the sum of theirs bounds nothing.
    """
    scope: Scope = "prefill" if any(arm.median("busy_copy_ns", "prefill") for arm in cell.arms.values()) else "pass"
    bounded = {name: arm for name, arm in cell.arms.items() if arm.median("busy_copy_ns", scope)}
    if not bounded:
        return None
    name = max(bounded, key=lambda name: bounded[name].median("hidden_ratio", scope) or 0)
    parts = _Parts.of(bounded[name], scope)
    if parts is None:
        return None
    took = f"; it took {format_ns(parts.took_ns)}." if parts.took_ns else "."
    if n_devices > 1 or (parts.took_ns and parts.took_ns < parts.longest_ns):
        return f"{name}: {parts.said}, summed over devices{took}"
    what = "the prompt" if scope == "prefill" else "it"
    return (
        f"{parts.verdict(what)} ({name}: {parts.said}), so no overlap can bring it below "
        f"{format_ns(parts.longest_ns)}{took}"
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """Medians of what an arm did in a phase, or in a pass."""

    copy_ns: float
    compute_ns: float
    host_ns: float
    took_ns: float | None

    @staticmethod
    def of(arm: ArmFigures, scope: Scope) -> _Parts | None:
        copy_ns, compute_ns, host_ns = (
            arm.median(name, scope) for name in ("busy_copy_ns", "busy_compute_ns", "host_compute_ns")
        )
        if not copy_ns or not compute_ns:
            return None
        took_ns = (arm.median("ttft_ns") if scope == "prefill" else None) or arm.median("wall_ns", scope)
        return _Parts(copy_ns, compute_ns, host_ns or 0, took_ns)

    @property
    def longest_ns(self) -> float:
        return max(self.copy_ns, self.compute_ns, self.host_ns)

    @property
    def said(self) -> str:
        beside = f", beside {format_ns(self.host_ns)} of computing on the host" if self.host_ns else ""
        return f"{format_ns(self.copy_ns)} of copying against {format_ns(self.compute_ns)} of computing{beside}"

    def verdict(self, what: str) -> str:
        if self.host_ns == self.longest_ns:
            return f"Computing on the host bounds {what}"
        if abs(self.copy_ns - self.compute_ns) <= _NEAR * self.longest_ns:
            return f"Copying and computing bound {what} about equally"
        return f"{'Copying' if self.copy_ns > self.compute_ns else 'Computing'} bounds {what}"


def _device_sentences(devices: Sequence[DeviceFigures], link_gb_s: float | None) -> Iterator[str]:
    for device in devices[:4]:
        yield from _device_sentence(device, link_gb_s)
    if len(devices) > 4:
        yield f"{len(devices) - 4} more devices are in the table."


def _device_sentence(device: DeviceFigures, link_gb_s: float | None) -> Iterator[str]:
    where = device_name(device)
    copies = device.copies.get("h2d") or device.copies.get("uvm_h2d")
    if copies is None:
        kernels = f"{device.kernels:,} kernels, {format_ns(device.compute_busy_ns)} busy"
        yield f"{where}: {kernels}, no host to device copies."
        return
    amount = format_bytes(copies.bytes) if copies.bytes is not None else f"an unknown amount ({copies.count:,} times)"
    speed = f" at {format_gb_s(copies.gb_s)}" if copies.gb_s else ""
    share = f" ({copies.gb_s / link_gb_s * 100:.0f} % of the link)" if link_gb_s and copies.gb_s else ""
    kinds = memory_kinds(copies)
    memory = f" from {' and '.join(kinds)} memory" if kinds else ""
    took = f"{memory}{speed}{share} in {format_ns(copies.busy_ns)}{_on_streams(device, copies)}"
    yield f"{where}: {amount} went to the device{took}; {_hidden(device, copies)}."


def memory_kinds(copies: CopyFigures) -> list[str]:
    """The kinds of host memory that at least a hundredth of the bytes came from, the larger first."""
    known = {"pinned": copies.pinned_bytes or 0, "pageable": copies.pageable_bytes or 0}
    kinds = [name for name, n_bytes in known.items() if n_bytes > 0 and n_bytes >= 0.01 * (copies.bytes or 0)]
    return sorted(kinds, key=lambda name: -known[name])


def _on_streams(device: DeviceFigures, copies: CopyFigures) -> str:
    shared = [stream for stream in copies.streams if stream in device.compute_streams]
    if not shared:
        return ""
    return " on the stream of the kernels" if len(shared) == len(copies.streams) else " partly on streams of kernels"


def _hidden(device: DeviceFigures, copies: CopyFigures) -> str:
    if not device.kernels:
        return "no kernel ran that could hide it"
    kernels = f"{format_ns(device.compute_busy_ns)} of kernels"
    longer = "copying" if copies.busy_ns > device.compute_busy_ns else "computing"
    share = format_share(copies.hidden_ns / copies.busy_ns) if copies.busy_ns else "none"
    return f"{kernels} hid {share} of it, and {longer} takes longer"


def device_name(device: DeviceFigures) -> str:
    """`Process 17068, device 0`, as far as the source names them."""
    process = f"process {device.process}, " if device.process is not None else ""
    name = f"{process}device {device.device}" if device.device is not None else f"{process}a device without a number"
    return name[0].upper() + name[1:]
