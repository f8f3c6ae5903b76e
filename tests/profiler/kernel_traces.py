"""A stand-in for torch.profiler where there is no GPU: it writes the Kineto trace that a recorded pass would leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from executor.passes import EventRecord, PassResult
from tests.profiler.importers.kineto.traces import Event, h2d, kernel, write, x

BASE_NS = 1_790_857_026 * 10**9
N_KERNELS = 3  # a step
_MARK_NS = 1_500  # between an event's mark and the work beside it


def trace_of(path: Path, result: PassResult, zero_unix_ns: int, **keys: Any) -> Path:
    """Write what CUPTI would have seen of a pass, on a clock on which the pass's zero is `zero_unix_ns`."""
    shift_ns = zero_unix_ns - BASE_NS
    events = [event for record in result.events for event in _work(record, shift_ns)]
    before = [kernel((shift_ns + result.t_start - t) / 1e3, 4.0, "fill", stream=7) for t in (900_000, 400_000)]
    return write(path, [*before, *events], **({"baseTimeNanoseconds": BASE_NS} | keys))


def _work(record: EventRecord, shift_ns: int) -> list[Event]:
    start = record.t_start + min(_MARK_NS, (record.t_end - record.t_start) // 4)
    end = record.t_end - min(_MARK_NS, (record.t_end - record.t_start) // 4)
    if record.kind == "h2d":
        return [h2d((start + shift_ns) / 1e3, (end - start) / 1e3, record.bytes or 0, device=record.device)]
    if record.kind != "compute":
        return []
    each = (end - start) / N_KERNELS
    starts = [start + shift_ns + i * each for i in range(N_KERNELS)]
    fields: dict[str, Any] = {"device": record.device, "stream": 13}
    kernels = [kernel(t / 1e3, each * 0.8 / 1e3, f"gemm_{record.name}", **fields) for t in starts[:-1]]
    inside = x("gpu_memcpy", "Memcpy DtoD (Device -> Device)", starts[-1] / 1e3, each * 0.8 / 1e3, bytes=64, **fields)
    return [*kernels, inside]


class FakeTracing:
    """`profiler.pass_kernels.Tracing` for passes of the cpu device; `result` and `zero_unix_ns` are of the last."""

    def __init__(self, *, is_empty: bool = False, **keys: Any) -> None:
        self.result: PassResult | None = None
        self.zero_unix_ns = 0
        self._is_empty, self._keys = is_empty, keys

    @contextmanager
    def __call__(self, path: Path) -> Iterator[None]:
        yield
        assert self.result is not None
        if self._is_empty:
            write(path, [], **self._keys)
            return
        trace_of(path, self.result, self.zero_unix_ns, **self._keys)
