"""Traces without a name for ubatches and layers: right where hprof's own recording tells the truth, null elsewhere."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from profiler.importers import read_file
from profiler.importers.unnamed import segment_unnamed
from profiler.schema import EVENTS
from profiler.storage.writer import conform
from tests.support import ROOT, shared_path

_OWN = ROOT / "tests" / "data" / "kineto"
_WEIGHT_BYTES = 1 << 20


def _labels(events: pa.Table, kind: str, *columns: str) -> list[tuple[Any, ...]]:
    rows = events.filter(pc.equal(events["kind"], kind)).sort_by("t_start").to_pylist()
    return [tuple(row[column] for column in columns) for row in rows]


@pytest.mark.parametrize("arm", ["off", "on"])
def test_copies_get_the_ubatch_and_layer_that_hprof_recorded(arm: str) -> None:
    """Both passes are of one prompt, and hprof's own recording is of the second."""
    events = read_file(_OWN / f"h200_llama8b_4layers_{arm}.json.gz").tables["events"]
    native = json.loads(gzip.decompress((_OWN / f"h200_llama8b_4layers_{arm}.native.json.gz").read_bytes()))
    truth = sorted(
        (e["t_start"], e["ubatch"], e["layer"], e["bytes"]) for e in native["profiled"] if e["kind"] == "h2d"
    )
    told = [row for row in _labels(events, "h2d", "ubatch", "layer", "bytes", "pass_id") if row[2] >= _WEIGHT_BYTES]
    assert [row[:3] for row in told] == [row[1:] for row in truth] * 2
    assert [row[3] for row in told] == [0] * 8 + [1] * 8


def test_most_of_the_kernels_are_placed_and_in_order() -> None:
    events = read_file(_OWN / "h200_llama8b_4layers_on.json.gz").tables["events"]
    kernels = [row for row in _labels(events, "compute", "pass_id", "ubatch", "layer") if None not in row]
    assert kernels == sorted(kernels)
    assert len(kernels) == 384  # of 484


@pytest.mark.parametrize(
    "sample",
    [
        ("kineto", "h200_dense_off_then_on.json.gz"),
        ("kineto", "a100_two_copy_streams.json.gz"),
        ("nsys", "2.9.1_2022.2.1_cudaHW_report3.sqlite"),
        ("nsys", "3.13.2_2024.5.4_cuda_report14.sqlite"),
        ("nsys", "3.24.14_2026.1.1_MULTISTREAM_async_report1.sqlite"),
        ("nsys", "3.25.0_2026.2.1_AB_before_mfu_2gpu.sqlite"),
    ],
)
def test_samples_that_do_not_decide_it_stay_null_and_say_so(sample: tuple[str, str]) -> None:
    found = read_file(shared_path("data", *sample))
    events = found.tables["events"]
    assert events["ubatch"].null_count == events["layer"].null_count == events.num_rows
    assert any(text.startswith("ubatches and layers: no range names them") for text in found.cannot_say)


@dataclass(frozen=True)
class Work:
    """A made-up trace: layers of the same kernels, and what is copied for each."""

    n_ubatches: int = 3
    n_layers: int = 5
    n_copies: int = 3
    copy_bytes: tuple[int, ...] = (4 << 20, 4 << 20, 2 << 20)
    copy_stream: str = "14"
    names: tuple[str, ...] = (
        "norm",
        "gemm_q",
        "rope",
        "flash_fwd",
        "gemm_o",
        "add",
        "norm_2",
        "gemm_up",
        "act",
        "down",
    )
    prologue: tuple[str, ...] = ("vectorized_gather_kernel", "cast")
    device: int = 0


def _events(work: Work) -> pa.Table:
    rows: list[dict[str, Any]] = []
    now = 1000

    def add(kind: str, name: str, **more: Any) -> None:
        nonlocal now
        row = {"kind": kind, "name": name, "t_start": now, "t_end": now + 5, "device": work.device, "stream": "7"}
        rows.append(row | more)
        now += 10

    for _ in range(work.n_ubatches):
        for name in work.prologue:
            add("compute", name)
        for _ in range(work.n_layers):
            for copy in range(work.n_copies):
                add("h2d", "HtoD", bytes=work.copy_bytes[copy % len(work.copy_bytes)], stream=work.copy_stream)
            for name in work.names:
                add("compute", name)
        add("compute", "final_norm")
        add("compute", "head_gemm")
    return conform(
        "events", {name: [row.get(name) for row in rows] for name in EVENTS.names if name in rows[0] | rows[2]}
    )


def _told(work: Work) -> tuple[set[Any], set[Any], list[tuple[Any, ...]]]:
    """The ubatches and layers of kernels, and those of each copy."""
    events, _ = segment_unnamed(_events(work))
    assert events.schema.equals(EVENTS)
    kernels = _labels(events, "compute", "ubatch", "layer")
    return {u for u, _ in kernels}, {layer for _, layer in kernels}, _labels(events, "h2d", "ubatch", "layer")


@pytest.mark.parametrize("stream", ["7", "14"], ids=["in line", "on their own stream"])
def test_copies_are_taken_in_order(stream: str) -> None:
    ubatches, layers, copies = _told(Work(copy_stream=stream))
    assert (ubatches, layers) == ({None, 0, 1, 2}, {None, 0, 1, 2, 3, 4})
    assert copies == [(ubatch, layer) for ubatch in range(3) for layer in range(5) for _ in range(3)]


@pytest.mark.parametrize(
    "work",
    [
        Work(n_copies=0),
        Work(n_copies=4),  # two layers of two tensors, maybe
        Work(n_copies=2, copy_bytes=(4 << 20,)),
        Work(n_copies=1, copy_bytes=(100,)),
        Work(prologue=("cast",)),
    ],
    ids=["no copies", "a pattern inside", "two alike", "small copies", "no embedding"],
)
def test_without_a_second_witness_there_are_ubatches_and_no_layers(work: Work) -> None:
    copy_bytes = (4 << 20, 2 << 20) if work.n_copies == 4 else work.copy_bytes
    ubatches, layers, copies = _told(replace(work, copy_bytes=copy_bytes))
    assert (ubatches, layers) == ({None, 0, 1, 2}, {None})
    assert {layer for _, layer in copies} <= {None}


@pytest.mark.parametrize("name", ["flash_bwd_dq", "mamba_chunk_scan", "gated_delta_rule_fwd", "MulBackward0"])
def test_training_and_other_mixers_stay_null(name: str) -> None:
    work = Work()
    ubatches, layers, _ = _told(replace(work, names=(*work.names, name)))
    assert (ubatches, layers) == ({None}, {None})


def test_devices_are_told_apart() -> None:
    """The second of two devices holds later layers: nothing there says which."""
    first, second = _events(Work()), _events(Work(device=1, prologue=("cast",)))
    events, said = segment_unnamed(pa.concat_tables([first, second]))
    for device, layers in ((0, {None, *range(5)}), (1, {None})):
        mine = events.filter(pc.equal(events["device"], device))
        assert set(mine["layer"].to_pylist()) == layers
        assert set(mine["ubatch"].to_pylist()) >= {0, 1, 2}
    assert len(said) == 2


def test_a_table_that_names_layers_is_left_alone() -> None:
    events = _events(Work())
    position = EVENTS.get_field_index("layer")
    named = events.set_column(position, EVENTS.field(position), pa.array([7] * events.num_rows, pa.int32()))
    assert segment_unnamed(named) == (named, [])
    assert segment_unnamed(EVENTS.empty_table())[1] == []
