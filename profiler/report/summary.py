"""The closing paragraph: what was copied, how fast, how much of it was hidden, what bounds the pass, what helped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from profiler.metrics import CopyFigures, DeviceFigures
from profiler.report.data import ArmFigures, Cell, Report
from profiler.report.units import format_bytes, format_gb_s, format_ns, format_share
from profiler.stats import Comparison

_MAX_ARMS = 4
_NEAR = 0.1  # copy and compute within a tenth of each other: neither bounds alone


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
    if len(cell.arms) > _MAX_ARMS:
        yield f"{len(cell.arms) - _MAX_ARMS} more arms are in the table."


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

    Several devices work beside each other, and the sum of theirs bounds nothing.
    """
    bounded = {name: arm for name, arm in cell.arms.items() if _median(arm, "busy_copy_ns")}
    if not bounded:
        return None
    name = max(bounded, key=lambda name: _median(bounded[name], "hidden_ratio") or 0)
    arm = bounded[name]
    copy_ns, compute_ns = _median(arm, "busy_copy_ns"), _median(arm, "busy_compute_ns")
    if not copy_ns or not compute_ns:
        return None
    both = f"{format_ns(copy_ns)} of copying against {format_ns(compute_ns)} of computing"
    wall_ns = _median(arm, "wall_ns")
    took = f"; it took {format_ns(wall_ns)}." if wall_ns else "."
    if n_devices > 1 or (wall_ns and wall_ns < max(copy_ns, compute_ns)):
        return f"{name}: {both}, summed over devices{took}"
    if abs(copy_ns - compute_ns) <= _NEAR * max(copy_ns, compute_ns):
        bound = "Copy and compute bound it about equally"
    else:
        bound = "Copying bounds it" if copy_ns > compute_ns else "Computing bounds it"
    host_ns = _median(arm, "host_compute_ns")
    both += f", beside {format_ns(host_ns)} of computing on the host" if host_ns else ""
    limit = f"{bound} ({name}: {both}), so no overlap can bring it below {format_ns(max(copy_ns, compute_ns))}"
    return limit + took


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
    """Prefetch of experts gives up the selective copy; say what that costs."""
    before, after = (_median(cell.arms[arm], "bytes_h2d") for arm in (cell.baseline, name))
    saved = _median(cell.arms[cell.baseline], "selective_saving_bytes")
    if before and after and saved and after > before:
        yield (
            f"{name} gives up the selective copy: it copied {after / before:.2f} times the bytes "
            f"({cell.baseline} saved {format_bytes(saved)})."
        )


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


def _median(arm: ArmFigures, name: str) -> float | None:
    found = arm.figures["pass"][name]
    return found.median if found is not None else None
