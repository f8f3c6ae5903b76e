"""The closing paragraph: what was copied, how fast, how much of it was hidden, what bounds the pass, what helped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profiler.arithmetic.stats import Comparison
from profiler.metrics import CopyFigures, DeviceFigures, Scope
from profiler.report.data import ArmFigures, Cell
from profiler.report.report import Report
from profiler.report.units import format_bytes, format_gb_s, format_ns, format_share

_MAX_ARMS = 4
_NEAR = 0.1  # copy and compute within a tenth of each other: neither bounds alone
_MORE_BYTES = 1.005  # fewer more would read as "1.00 times"


def summarise(report: Report) -> str:
    """A few sentences in plain words about the telling cell, or about the devices where there are no passes."""
    if report.cells:
        cell = telling_cell(report.cells)
        return " ".join([*_cell_sentences(cell, report), *_over_cells(report.cells)])
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
    told = list(cell.arms)[:_MAX_ARMS]
    copying = [text for name in told if (text := _copied(name, cell.arms[name], report.link_h2d_gb_s))]
    if copying:
        yield f"In one pass ({describe_cell(cell)}), {'; '.join(copying)}."
    if bound := _bound(cell, len({device.device for device in report.devices})):
        yield bound
    for name in told[1:]:
        yield from _changes(cell.baseline, name, cell.against_baseline[name])
        yield from _bytes_changed(cell, name)
        yield from _layers_lost(report, cell, name)
    if (more := len(cell.arms) - _MAX_ARMS) > 0:
        yield f"{more} more {'arm is' if more == 1 else 'arms are'} in the table."


def _copied(name: str, arm: ArmFigures, link_gb_s: float | None) -> str | None:
    n_bytes, busy_ns = _median(arm, "bytes_h2d"), _median(arm, "busy_copy_ns")
    hidden = _median(arm, "hidden_ratio")
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
    scope: Scope = "prefill" if any(_median(arm, "busy_copy_ns", "prefill") for arm in cell.arms.values()) else "pass"
    bounded = {name: arm for name, arm in cell.arms.items() if _median(arm, "busy_copy_ns", scope)}
    if not bounded:
        return None
    name = max(bounded, key=lambda name: _median(bounded[name], "hidden_ratio", scope) or 0)
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
            _median(arm, name, scope) for name in ("busy_copy_ns", "busy_compute_ns", "host_compute_ns")
        )
        if not copy_ns or not compute_ns:
            return None
        took_ns = (_median(arm, "ttft_ns") if scope == "prefill" else None) or _median(arm, "wall_ns", scope)
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


def _changes(baseline: str, name: str, compared: dict[str, Comparison | None]) -> Iterator[str]:
    words = {"ttft_ns": "time to first token", "decode_tokens_per_s": "decode speed"}
    if compared.get("ttft_ns") is None:
        words = {"prefill_tokens_per_s": "prefill speed", "decode_tokens_per_s": "decode speed"}
    told = [f"{words[key]} {_change(found)}" for key in words if (found := compared.get(key)) is not None]
    if told:
        yield f"{name} against {baseline}: {'; '.join(told)}."


def _change(found: Comparison) -> str:
    within = f" ({found.low:.3f} to {found.high:.3f})" if found.low is not None and found.high is not None else ""
    return f"x{found.ratio:.3f}{within}, {found.verdict}"


def _over_cells(cells: Sequence[Cell]) -> Iterator[str]:
    """How the verdicts are spread where there is more than one cell."""
    if len(cells) < 2:
        return
    for name in dict.fromkeys(name for cell in cells for name in cell.against_baseline):
        verdicts = Counter(verdict for cell in cells if (verdict := _first_verdict(cell, name)) is not None)
        if verdicts:
            spread = ", ".join(f"{verdict} in {count}" for verdict, count in verdicts.most_common())
            yield f"Over {verdicts.total()} cells {name} is {spread}."


def _first_verdict(cell: Cell, name: str) -> str | None:
    compared = cell.against_baseline.get(name, {})
    found = compared.get("ttft_ns") or compared.get("prefill_tokens_per_s") or compared.get("decode_tokens_per_s")
    return found.verdict if found is not None else None


def _bytes_changed(cell: Cell, name: str) -> Iterator[str]:
    """What copying experts ahead costs in bytes: all of the selective copy, or some of it."""
    before, after = (_median(cell.arms[arm], "bytes_h2d") for arm in (cell.baseline, name))
    saved, kept = (_median(cell.arms[arm], "selective_saving_bytes") for arm in (cell.baseline, name))
    if before and after and saved and after > before * _MORE_BYTES:
        more = f"{after / before:.2f} times the bytes"
        whole = f"gives up the selective copy, which saved {cell.baseline} {format_bytes(saved)}: it copied {more}"
        yield f"{name} {f'copied {more} of {cell.baseline}' if kept else whole}."


def _layers_lost(report: Report, cell: Cell, name: str) -> Iterator[str]:
    """How many layers an arm keeps fewer than the baseline for its slots and bank, which decode then pays for."""
    first, other = (report.residency.get(arm) for arm in (cell.baseline, name))
    lost = 0 if first is None or other is None else len(other.host_layers) - len(first.host_layers)
    if lost > 0 and first is not None and other is not None:
        held = other.slots_bytes + other.bank_bytes - first.slots_bytes - first.bank_bytes
        what = "slots and bank" if other.bank_bytes else "slots"
        layers = "layer" if lost == 1 else "layers"
        yield f"Its {what} take {format_bytes(held)} more, so it keeps {lost} {layers} fewer resident."


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


def _median(arm: ArmFigures, name: str, scope: Scope = "pass") -> float | None:
    found = arm.figures[scope][name]
    return found.median if found is not None else None
