"""What a device and the CPU compute and read, measured by themselves: products, dequantisation, attention, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F

from executor.devices.base import CopyRange, Device, DeviceKind, StreamName, Work
from executor.host.products import PrepareJob, make_product, product_kind, run_jobs
from executor.host.steps import host_dtype
from executor.host.stored import StoredFfn, StoredMatrix, StoredTensor
from executor.layers.attention_kernels import attend
from executor.layers.widened_experts import grouped_mm
from executor.model import TensorInfo
from executor.quants import row_bytes
from executor.quants.dispatch import dequantise
from executor.quants.products import linear
from executor.quants.random_blocks import fill_random
from executor.quants.stored import Stored
from executor.units import format_bytes
from profiler.predicting.probe import Measure
from profiler.probing.timed import cost, rate, stream_ns

_HEADS, _KV_HEADS, _HEAD = 32, 8, 128
_LAUNCHES: Final = 100
_STD: Final = 0.02
_GROUPED: Final = ((128, 768, 2048, 8), (32, 1536, 3072, 4))
"""Experts of a layer, (n_ff, hidden) of each, and how many serve a token."""
_STREAMED_BYTES: Final = 256 << 20  # more than the CPU's caches hold


_Weights = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured, which depends on how fast the device is."""

    widths: tuple[int, ...]
    """Of square matrices."""
    rows: tuple[int, ...]
    memory_bytes: int
    depths: tuple[int, ...]
    attention_rows: int
    experts: tuple[tuple[int, int], ...]
    """(n_ff, hidden) of the experts that the CPU multiplies, one row each."""


SIZES: Final[dict[DeviceKind, Sizes]] = {
    "cpu": Sizes((512, 1024), (1, 16, 128, 512), 64 << 20, (0, 512, 2048), 32, ((256, 512), (768, 1024))),
    "cuda": Sizes((2048, 4096), (1, 32, 512, 4096), 512 << 20, (0, 4096, 16_384), 512, ((768, 2048), (2048, 4096))),
}


def device_measures(device: Device, quants: Sequence[str], dtype: torch.dtype, sizes: Sizes) -> Iterator[Measure]:
    """What the device computes and reads."""
    where = device.torch_device
    one = torch.zeros(1, device=where)
    times = _compute_ns(device, lambda: [one.add_(1) for _ in range(_LAUNCHES)])
    yield cost("launch", f"each of {_LAUNCHES}", "us", times, _LAUNCHES)
    memory = torch.zeros(sizes.memory_bytes, dtype=torch.uint8, device=where)
    other = torch.empty_like(memory)
    times = _compute_ns(device, lambda: other.copy_(memory))
    yield rate("device memory, read and written", format_bytes(len(memory)), "GB/s", 2 * len(memory), times)
    yield from _dequantisation(device, quants, dtype, sizes.widths[-1])
    yield from _dense(device, quants, dtype, sizes)
    if device.kind == "cuda":
        for shape in _GROUPED:
            yield from _grouped(device, quants, dtype, *shape)
    yield from _attention(device, dtype, sizes)


def host_measures(device: Device, quants: Sequence[str], dtype: torch.dtype, sizes: Sizes) -> Iterator[Measure]:
    """What the CPU reads and multiplies, alone and while the bus is busy: they share the host's memory."""
    memory = torch.ones(sizes.memory_bytes // 8, dtype=torch.int64)
    times = _host_ns(device, memory.sum)
    yield rate("host memory, read", format_bytes(sizes.memory_bytes), "GB/s", sizes.memory_bytes, times)
    busy = _busy_link(device)
    for quant in quants:
        for n_ff, hidden in sizes.experts:
            experts = _HostExperts(quant, n_ff, hidden, host_dtype(dtype))
            at = f"{quant} {n_ff}x{hidden}"
            for n_used in (1, 8):
                for how, beside in (("", None), (", link busy", busy)):
                    times = _host_ns(device, partial(experts.multiply, n_used), beside)
                    yield rate(
                        f"CPU, experts for a token{how}",
                        f"{n_used} of {at}",
                        "GB/s",
                        n_used * experts.expert_bytes,
                        times,
                    )


def _compute_ns(device: Device, fn: Callable[[], object]) -> list[int]:
    return _launched_ns(device, "compute", fn)


def _host_ns(device: Device, fn: Callable[[], object], beside: Callable[[], None] | None = None) -> list[int]:
    return _launched_ns(device, "host", fn, beside)


def _launched_ns(
    device: Device, stream: StreamName, fn: Callable[[], object], beside: Callable[[], None] | None = None
) -> list[int]:
    def launched() -> None:
        with torch.inference_mode():
            fn()

    return stream_ns(device, stream, lambda: device.launch(stream, launched, Work()), beside)


def _dequantisation(device: Device, quants: Sequence[str], dtype: torch.dtype, width: int) -> Iterator[Measure]:
    for quant in quants:
        raw = _stored(quant, width, width).to(device.torch_device)
        times = _compute_ns(device, lambda raw=raw, quant=quant: dequantise(raw, quant, dtype))  # type: ignore[misc]
        yield rate("dequantised", f"{quant} {width}x{width}", "Gweight/s", width * width, times)


def _dense(device: Device, quants: Sequence[str], dtype: torch.dtype, sizes: Sizes) -> Iterator[Measure]:
    """Products with widened weights, and with stored ones as layers compute them."""
    where = device.torch_device
    for width in sizes.widths:
        weight = torch.ones((width, width), dtype=dtype, device=where)
        stored = {quant: Stored(_stored(quant, width, width).to(where), quant) for quant in quants}
        for n in sizes.rows:
            rows = torch.ones((n, width), dtype=dtype, device=where)
            ways: dict[str, Callable[[], object]] = {"product": partial(F.linear, rows, weight)}
            ways |= {f"product, {quant}": partial(_by_stored, rows, one) for quant, one in stored.items()}
            for what, compute in ways.items():
                times = _compute_ns(device, compute)
                yield rate(what, f"{n} rows, {width}x{width}", "Gflop/s", 2 * n * width * width, times)


def _by_stored(rows: torch.Tensor, matrix: Stored) -> object:
    """One product with a stored matrix: from its bytes where that is faster for so few rows, else dequantised first."""
    return linear(rows, [matrix], lambda: (F.linear(rows, dequantise(matrix.raw, matrix.layout, rows.dtype)),))


def _grouped(
    device: Device, quants: Sequence[str], dtype: torch.dtype, n_experts: int, n_ff: int, hidden: int, n_used: int
) -> Iterator[Measure]:
    """Products of rows with their experts, widened already, and dequantised before."""
    where = device.torch_device
    shape = (n_experts, n_ff, hidden)
    widened = torch.ones(shape, dtype=dtype, device=where)
    weights: dict[str, _Weights] = {"grouped product": lambda: widened}
    for quant in quants:
        raw = _stored(quant, n_ff, hidden).to(where).repeat(n_experts, 1)
        weights[f"grouped product, {quant}"] = partial(_dequantised, raw, quant, dtype, shape)
    for n in (64, 512, 4096):
        rows = torch.ones((n * n_used, hidden), dtype=dtype, device=where)
        ends = (torch.arange(1, n_experts + 1, device=where) * (n * n_used // n_experts)).int()
        at = f"{n} tokens, top {n_used} of {n_experts} of {n_ff}x{hidden}"
        for what, stack in weights.items():

            def product(rows: torch.Tensor = rows, ends: torch.Tensor = ends, stack: _Weights = stack) -> torch.Tensor:
                return grouped_mm(rows, stack().transpose(-1, -2), offs=ends)

            yield rate(what, at, "Gflop/s", 2 * n * n_used * n_ff * hidden, _compute_ns(device, product))


def _dequantised(raw: torch.Tensor, quant: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return dequantise(raw, quant, dtype).view(shape)


def _attention(device: Device, dtype: torch.dtype, sizes: Sizes) -> Iterator[Measure]:
    n, where = sizes.attention_rows, device.torch_device
    q = torch.ones((n, _HEADS, _HEAD), dtype=dtype, device=where)
    for depth in sizes.depths:
        keys = torch.ones((depth + n, _KV_HEADS, _HEAD), dtype=dtype, device=where)
        times = _compute_ns(device, lambda keys=keys: attend(q, keys, keys))  # type: ignore[misc]
        yield cost("attention", f"{n} tokens at depth {depth}, {_HEADS}/{_KV_HEADS} heads of {_HEAD}", "us", times, 1)


class _HostExperts:
    """Experts on the CPU, a row each; other ones each time, so that no cache holds them."""

    def __init__(self, quant: str, n_ff: int, hidden: int, dtype: torch.dtype) -> None:
        one = 3 * n_ff * row_bytes(quant, hidden)
        self.n_experts = min(max(8, -(-_STREAMED_BYTES // one)), 32)
        up, down = (self._matrices(quant, *shape) for shape in ((n_ff, hidden), (hidden, n_ff)))
        self._row, self._next = torch.ones((1, hidden), dtype=dtype), 0
        self._at_once = product_kind(up.info, dtype) == product_kind(down.info, dtype) == "stored"
        self._parts = [StoredMatrix(one) for one in (up, up, down)]
        jobs: list[PrepareJob] = []
        self._product = make_product([up], dtype, jobs)
        run_jobs(jobs)
        read = 2 * up.info.n_bytes + down.info.n_bytes if self._at_once else up.info.n_bytes
        self.expert_bytes = read // self.n_experts

    def multiply(self, n_used: int) -> None:
        """One token's product with so many experts: through all of them at once, or with one matrix of each."""
        ids = [(self._next + i) % self.n_experts for i in range(n_used)]
        self._next = (self._next + n_used) % self.n_experts
        if self._at_once:
            StoredFfn(self._parts, "silu", n_used=n_used)(self._row, torch.tensor([ids]), torch.ones(1, n_used))
            return
        for expert in ids:
            self._product(self._row, expert)

    def _matrices(self, quant: str, n_rows: int, n_cols: int) -> StoredTensor:
        raw = _stored(quant, n_rows, n_cols).repeat(self.n_experts, 1).view(self.n_experts, n_rows, -1)
        return StoredTensor(TensorInfo("", quant, (self.n_experts, n_rows, n_cols), raw.numel()), raw)


def _busy_link(device: Device) -> Callable[[], None]:
    """Copies into the device that last longer than what is measured beside them."""
    n = 32 << 20
    here, there = device.host_slab(n, pinned=True), device.allocate(n, "the probe's copies")
    ranges = [CopyRange(here, 0, there, 0, n)] * 4
    return lambda: device.copy_in("copy", ranges)


def _stored(quant: str, n_rows: int, n_cols: int) -> torch.Tensor:
    raw = torch.empty(n_rows * row_bytes(quant, n_cols), dtype=torch.uint8)
    fill_random(raw, quant, _STD, 0)
    return raw.view(n_rows, -1)
