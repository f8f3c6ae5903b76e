"""The last row of a stream goes where its process had waited for the device and the row claims to run on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from profiler.importers.dropping import OUTLASTS_WAIT, LaunchedRows, Waits, outlasting
from tests.profiler.importers.kineto import traces
from tests.profiler.importers.nsys import exports
from tests.profiler.importers.nsys.exports import KERNEL, RUNTIME

_US, _MS = 10**3, 10**6


def _marked(
    ends: dict[int, int], waits: list[tuple[int, int]], *, streams: int = 1, contexts: int = 1, launched: int = 0
) -> list[int]:
    """Of ten rows, 1 ms apart and 0.5 ms long, those marked; ends: other ends. waits: starts and returns, ms."""
    number = np.arange(10)
    start = number * _MS
    end = start + _MS // 2
    for row, changed in ends.items():
        end[row] = changed * _MS
    rows = LaunchedRows(
        number % streams, number % contexts, np.full(10, 4), start, end, np.maximum(start - 20 * _US, launched * _MS)
    )
    begun, returned = (np.array(times, np.int64) * _MS for times in zip(*waits, strict=True))
    found = outlasting(rows, Waits(np.full(len(waits), 4), begun, returned))
    return np.flatnonzero(found).tolist()


def test_a_last_row_that_ends_after_its_wait_goes() -> None:
    assert _marked({9: 3_000}, [(9, 12)]) == [9]
    assert _marked({9: 3_000, 8: 2_000}, [(9, 12)], streams=2) == [8, 9]
    assert _marked({}, [(9, 12)]) == []
    assert _marked({9: 12}, [(9, 12)]) == []


def test_what_no_wait_contradicts_stays() -> None:
    assert _marked({9: 3_000}, [(0, 5)]) == []  # the wait began before the launch
    assert _marked({9: 3_000}, [(9, 12)], launched=11) == []
    assert _marked({9: 3_000}, [(9, 12)], contexts=2) == []  # a wait is for one context
    assert _marked({9: 16}, [(9, 13)]) == []  # by less than half its length: clocks may differ so much


def test_clocks_that_differ_mark_nothing() -> None:
    """All rows of the last wait seem to end after it, not the last one alone."""
    assert _marked({7: 200, 8: 300, 9: 400}, [(3, 4), (7, 10)]) == []


def test_a_wait_of_another_process_says_nothing() -> None:
    zero = np.zeros(1, np.int64)
    rows = LaunchedRows(zero, zero, zero + 4, zero, zero + 900 * _MS, zero)
    assert not outlasting(rows, Waits(zero + 5, zero + _MS, zero + 2 * _MS)).any()
    assert outlasting(rows, Waits(zero + 4, zero + _MS, zero + 2 * _MS)).all()
    assert len(outlasting(LaunchedRows(*[zero[:0]] * 6), Waits(zero, zero, zero))) == 0


@pytest.mark.parametrize("kind", ["kineto", "nsys"])
@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_damaged_last_kernel_of_a_trace(tmp_path: Path, kind: str, is_damaged: bool) -> None:
    """Twenty kernels of 0.4 ms, the last one said to run 5 s; then the program waits, as torch.profiler's stop does."""
    lengths = [400] * 19 + [5_000_000 if is_damaged else 400]
    if kind == "kineto":
        events = [traces.call(1000 + 500 * i - 20, 3, i + 1) for i in range(20)]
        events += [traces.kernel(1000 + 500 * i, length, correlation=i + 1) for i, length in enumerate(lengths)]
        events.append(traces.call(10_600, 600, 99) | {"name": "cudaDeviceSynchronize"})
        found = traces.imported(tmp_path, events)
    else:
        calls = [exports.call((980 + 500 * i) * _US, (983 + 500 * i) * _US, i + 1) for i in range(20)]
        calls.append(exports.call(10_600 * _US, 11_200 * _US, 99, nameId=exports.DEVICE_WAIT))
        kernels = [
            exports.kernel((1000 + 500 * i) * _US, (1000 + 500 * i + length) * _US, i + 1)
            for i, length in enumerate(lengths)
        ]
        found = exports.imported(tmp_path, {KERNEL: kernels, RUNTIME: calls})
    assert dict(found.dropped) == ({f"device row: {OUTLASTS_WAIT}": 1} if is_damaged else {})
    kept = [row for row in found.tables["events"].to_pylist() if row["kind"] == "compute"]
    assert {row["t_end"] - row["t_start"] for row in kept} == {400 * _US}
