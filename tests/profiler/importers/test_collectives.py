"""Collectives are told apart by the same rule whatever recorded them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from profiler.importers import read_file
from profiler.importers.base import Imported
from profiler.importers.collectives import mark_collectives
from profiler.schema import EVENTS
from profiler.storage.writer import conform
from tests.profiler.importers.kineto import traces
from tests.profiler.importers.nsys import exports

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"
# (name, device, stream): a stream of collectives alone, and one that also computes
WORK = [("gemm", 0, 7), (ALL_REDUCE, 0, 20), (ALL_REDUCE, 0, 20), ("gemm", 1, 20), (ALL_REDUCE, 1, 20)]
DETAILS = [None, "collective", "collective", None, None]


def _from_kineto(path: Path) -> Imported:
    return traces.imported(
        path, [traces.kernel(10 * i, 5, name, device=d, stream=s) for i, (name, d, s) in enumerate(WORK)]
    )


def _from_nsys(path: Path) -> Imported:
    ids = {name: number for number, name in enumerate(("gemm", ALL_REDUCE))}
    rows = [
        exports.kernel(10 * i + 1, 10 * i + 6, demangledName=ids[name], deviceId=device, streamId=stream)
        for i, (name, device, stream) in enumerate(WORK)
    ]
    strings = [{"id": number, "value": name} for name, number in ids.items()]
    return exports.imported(path, {exports.KERNEL: rows, "StringIds": strings})


def _from_stats(path: Path) -> Imported:
    lines = ["Start (ns),Duration (ns),CorrId,Bytes (MB),SrcMemKd,Device,Ctx,Strm,Name"]
    lines += [f'{10 * i},5,{i},,,GPU ({d}),1,{s},"{name}"' for i, (name, d, s) in enumerate(WORK)]
    (path / "trace.csv").write_text("\n".join(lines))
    return read_file(path / "trace.csv")


@pytest.mark.parametrize("read", [_from_kineto, _from_nsys, _from_stats])
def test_a_collective_is_no_compute_where_it_has_a_stream_of_its_own(
    tmp_path: Path, read: Callable[[Path], Imported]
) -> None:
    found = read(tmp_path)
    assert found.tables["events"]["detail"].to_pylist() == DETAILS
    assert found.tables["events"].schema.equals(EVENTS)
    assert any(warning.startswith("2 collective kernels") for warning in found.warnings)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("void ncclAllReduceRingLLKernel_copy_f32(ncclColl)", True),
        ("rcclGenericKernel", True),
        ("mscclKernel_Sum_half", True),
        ("nvjet_nccl_shaped_gemm", False),
        ("void at::native::vectorized_nccl", False),
    ],
)
def test_names_of_collectives(name: str, is_one: bool) -> None:
    columns = {"kind": ["compute"], "name": [name], "t_start": [0], "t_end": [1], "device": [0], "stream": ["7"]}
    events, n_found = mark_collectives(conform("events", columns))
    assert (n_found, events["detail"].to_pylist()) == ((1, ["collective"]) if is_one else (0, [None]))


def test_memsets_copies_and_tables_without_rows_stay(tmp_path: Path) -> None:
    columns = {"kind": ["h2d", "compute"], "name": [ALL_REDUCE] * 2, "detail": [None, "memset"], "stream": ["7"] * 2}
    events = conform("events", columns | {"t_start": [0, 1], "t_end": [1, 2]})
    assert mark_collectives(events) == (events, 0)
    assert mark_collectives(EVENTS.empty_table())[1] == 0
    assert isinstance(mark_collectives(events)[0], pa.Table)
