"""Real traces give the independently computed figures exactly; damaged ones never a traceback."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.errors import HprofError
from profiler.arithmetic.intervals import Intervals, intersect, union
from profiler.importers.base import Imported, ImportOptions
from profiler.importers.kineto import read
from tests.support import ROOT, shared_path

H200 = ROOT / "tests" / "data" / "kineto" / "h200_dense_off_then_on.json.gz"
_KINDS = {"HtoD": "h2d", "DtoH": "d2h", "DtoD": "d2d"}


def _golden(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(shared_path("data", "kineto", "golden.json").read_text())[name]
    return figures


def _of_kind(result: Imported, kind: str, stream: str | None = None) -> pa.Table:
    events = result.tables["events"]
    mask = pc.equal(events["kind"].cast(pa.string()), kind)
    for label in ("memset", "collective"):
        mask = pc.and_(mask, pc.not_equal(pc.fill_null(events["detail"].cast(pa.string()), ""), label))
    if stream is not None:
        mask = pc.and_(mask, pc.equal(events["stream"].cast(pa.string()), stream))
    return events.filter(mask)


def _union(table: pa.Table) -> Intervals:
    return union(table["t_start"].to_numpy(), table["t_end"].to_numpy())


def test_a100_with_two_copy_streams() -> None:
    golden = _golden("a100_two_copy_streams.json.gz")
    result = read(shared_path("data", "kineto", "a100_two_copy_streams.json.gz"), ImportOptions())
    kernels = _of_kind(result, "compute")
    computing = _union(kernels)
    details = pc.value_counts(result.tables["events"]["detail"].cast(pa.string())).to_pylist()
    assert kernels.num_rows == golden["kernels"]
    assert {d["values"]: d["counts"] for d in details}["collective"] == golden["nccl"]
    assert computing.total == golden["kernel_union_us"] * 1000
    for name, kind in _KINDS.items():
        copies, expected = _of_kind(result, kind), golden[name]
        assert copies.num_rows == expected["n"]
        assert pc.sum(copies["bytes"]).as_py() == expected["bytes"]
        assert sorted(int(s) for s in copies["stream"].unique().to_pylist()) == expected["streams"]
        assert _union(copies).total == expected["union_us"] * 1000
        assert intersect(_union(copies), computing).total == expected["overlap_us"] * 1000
        assert copies["name"].unique().to_pylist() == expected["kinds"]


@pytest.mark.parametrize(("key", "stream"), [("all", None), ("stream 7", "7"), ("stream 14", "14")])
def test_h200_dense_off_then_on(key: str, stream: str | None) -> None:
    golden = _golden("h200_dense_off_then_on.json.gz")
    result = read(H200, ImportOptions())
    computing, copies, expected = _union(_of_kind(result, "compute")), _of_kind(result, "h2d", stream), golden[key]
    assert _of_kind(result, "compute").num_rows == golden["kernels"]
    assert computing.total == round(golden["kernel_union_us"] * 1000)
    assert copies.num_rows == expected["n"]
    assert pc.sum(copies["bytes"]).as_py() == expected["bytes"]
    assert _union(copies).total == round(expected["union_us"] * 1000)
    assert intersect(_union(copies), computing).total == round(expected["hidden_us"] * 1000)
    assert copies["source_memory"].unique().to_pylist() == ["pinned"]


@pytest.fixture(scope="module")
def real_events() -> bytes:
    return gzip.decompress(H200.read_bytes())[:200_000]


@given(
    flips=st.lists(st.tuples(st.integers(0, 199_999), st.integers(0, 255)), max_size=20), cut=st.integers(1, 200_000)
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_traces_import_or_give_one_clear_error(
    tmp_path: Path, real_events: bytes, flips: list[tuple[int, int]], cut: int
) -> None:
    data = np.frombuffer(real_events, np.uint8).copy()
    for at, value in flips:
        data[at] = value
    path = tmp_path / "mutated.json"
    path.write_bytes(data.tobytes()[:cut])
    try:
        result = read(path, ImportOptions())
    except HprofError:
        return
    events = result.tables["events"]
    if events.num_rows:
        assert pc.min(pc.subtract(events["t_end"], events["t_start"])).as_py() >= 0


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
_KEYS = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])


@given(changes=st.lists(st.tuples(_KEYS, _JUNK), min_size=1, max_size=6), arguments=_JUNK)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_events_of_wrong_types_are_counted_not_crashed_on(
    tmp_path: Path, changes: list[tuple[str, Any]], arguments: Any
) -> None:
    from tests.profiler.importers.kineto.traces import h2d, imported

    junk = [h2d(1, 1, device=arguments, bytes=arguments, stream=arguments) | {key: value} for key, value in changes]
    result = imported(tmp_path, [h2d(1, 1), *junk])
    n_not_read = sum(event["cat"] != "gpu_memcpy" for event in junk)
    assert result.tables["events"].num_rows + result.dropped.total() + n_not_read >= 1 + len(junk)
