"""Kernels of a pass, put into the steps that they ran in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from executor.records import EventRecord, PassResult
from profiler.cupti.rows import Kernels, kernel_rows
from profiler.importers.base import ImportOptions
from profiler.importers.kineto import read
from tests.profiler.cupti.traces import N_KERNELS, trace_of

ZERO_NS = 1_795_981_652_123_456_789
SKEW_NS = 40_000


def event(kind: Any, start: int, end: int, name: str = "ffn", layer: int | None = 0, **fields: Any) -> EventRecord:
    known: dict[str, Any] = {
        "device": 0,
        "stream": "compute",
        "phase": "prefill",
        "ubatch": 0,
        "layer": layer,
        "n_tokens": 64,
    }
    return EventRecord(kind, name, start, end, **(known | fields))


def result_of(events: list[EventRecord]) -> PassResult:
    none: dict[str, Any] = dict.fromkeys(
        ("ttft_ns", "prefill_ns", "decode_ns", "sampling_ns", "vram_peak", "vram_resident", "vram_slots", "vram_bank")
    )
    return PassResult(0, 2_000_000, tokens=[], bytes_h2d=0, logits_digest=None, events=events, **none)


def dense_pass(device: int = 0) -> PassResult:
    steps = [
        event("compute", 10_000 + 200_000 * i, 190_000 + 200_000 * i, "attn" if i % 2 else "ffn", i, device=device)
        for i in range(8)
    ]
    copies = [
        event("h2d", 200_000 * i, 150_000 + 200_000 * i, "copy whole", i, device=device, stream="copy", bytes=1 << 20)
        for i in range(8)
    ]
    return result_of([*steps, *copies])


def kernels_of(tmp_path: Path, result: PassResult, zero_ns: int = ZERO_NS, **keys: Any) -> Kernels:
    path = trace_of(tmp_path / "trace.json", result, ZERO_NS + SKEW_NS, **keys)
    return kernel_rows(read(path, ImportOptions()), result, {0: zero_ns})


def test_each_kernel_lies_in_its_step(tmp_path: Path) -> None:
    result = dense_pass()
    kernels = kernels_of(tmp_path, result)
    rows = kernels.rows.to_pylist()
    assert kernels.n_unmatched == 0
    assert len(rows) == 8 * N_KERNELS  # no copy over the bus, and nothing from before the pass
    for row in rows:
        [step] = [e for e in result.events if e.kind == "compute" and e.layer == row["layer"]]
        assert step.t_start - 2_000 <= row["t_start"] < row["t_end"] <= step.t_end + 2_000
        assert (row["phase"], row["ubatch"], row["n_tokens"]) == ("prefill", 0, 64)
        assert (row["kind"], row["detail"], row["stream"], row["device"]) == ("compute", "kernel", "kernels", 0)
        assert row["correlation_id"] is None  # a native copy's number; CUPTI counts otherwise
    assert {row["name"] for row in rows} == {"gemm_ffn", "gemm_attn", "Memcpy DtoD (Device -> Device)"}
    assert [row["bytes"] for row in rows if row["name"].startswith("Memcpy")] == [64] * 8


def test_kernels_between_steps_belong_to_none(tmp_path: Path) -> None:
    result = dense_pass()
    whole = kernels_of(tmp_path, result)
    result.events = [e for e in result.events if not (e.kind == "compute" and e.layer == 3)]
    path = tmp_path / "trace.json"  # still of the whole pass
    rows = kernel_rows(read(path, ImportOptions()), result, {0: ZERO_NS}).rows.to_pylist()
    assert len(rows) == whole.rows.num_rows
    assert sum(row["layer"] is None and row["phase"] is None for row in rows) == N_KERNELS


def test_a_clock_that_cannot_be_matched_loses_the_kernels_and_counts_them(tmp_path: Path) -> None:
    kernels = kernels_of(tmp_path, dense_pass(), zero_ns=ZERO_NS + 10**9)
    assert kernels.rows.num_rows == 0
    assert kernels.n_unmatched == 8 * N_KERNELS + 2
    without_base = kernels_of(tmp_path, dense_pass(), baseTimeNanoseconds=None)
    assert (without_base.rows.num_rows, without_base.n_unmatched) == (0, 8 * N_KERNELS + 2)


def test_devices_have_clocks_of_their_own(tmp_path: Path) -> None:
    """Each is matched alone, here 3 ms apart."""
    first, second = dense_pass(0), dense_pass(1)
    events = []
    for result, zero_ns in ((first, ZERO_NS), (second, ZERO_NS + 3_000_000)):
        path = trace_of(tmp_path / "one.json", result, zero_ns)
        events.append(read(path, ImportOptions()).tables["events"])
    trace = read(path, ImportOptions())
    trace.tables["events"] = pa.concat_tables(events)
    both = result_of([*first.events, *second.events])
    rows = kernel_rows(trace, both, {0: ZERO_NS, 1: ZERO_NS + 3_000_000}).rows.to_pandas()
    assert rows.groupby("device", observed=True).size().to_dict() == {0: 8 * N_KERNELS, 1: 8 * N_KERNELS}
    ordered = [group.sort_values("t_start") for _, group in rows.groupby("device")]
    assert abs(ordered[0]["t_start"].to_numpy() - ordered[1]["t_start"].to_numpy()).max() <= 2_000
    assert rows["layer"].notna().all()


def test_a_pass_without_a_trace_has_no_kernels(tmp_path: Path) -> None:
    result = result_of([])
    kernels = kernels_of(tmp_path, result)
    assert kernels.rows.num_rows == 0
    assert kernels.rows.schema.names[0] == "pass_id"
