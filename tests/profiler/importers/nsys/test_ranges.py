"""Ranges of domain hprof restore arm, pass, phase, ubatch, layer, tensor and the roles of streams. Layers and
ubatches from other people's names: only where they are spelled out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.tracing.nvtx_names import PassName, StepName, UbatchName, format_pass, format_step, format_ubatch
from profiler.importers.base import Imported
from profiler.importers.nsys.ranges import LAYER_NAME, UBATCH_NAME
from tests.profiler.importers.nsys.exports import (
    GLOBAL_PID,
    KERNEL,
    MEMCPY,
    RUNTIME,
    Row,
    Tables,
    call,
    copy,
    domain,
    events,
    imported,
    kernel,
    nvtx,
)

_DOMAIN = 5


def _range(start: int, end: int, text: str) -> Row:
    return nvtx(start, end, text, domainId=_DOMAIN)


def _pass(start: int, pass_id: int, arm: str) -> Tables:
    """1,000 ns: a prefill ubatch of two layers and a decode step; layer 0's weights of the step come ahead."""
    at, first = start, pass_id * 100 + 1
    name = PassName(pass_id, arm, 512, 64, 512, 2, 0, pass_id == 0)
    weights = [format_step(StepName(layer, "whole", f"blk.{layer}.ffn")) for layer in (0, 1)]
    ranges = [
        _range(at, at + 1000, format_pass(name)),
        _range(at + 10, at + 500, format_ubatch(UbatchName(0, "prefill", 512))),
        _range(at + 20, at + 30, weights[0]),
        _range(at + 40, at + 50, format_step(StepName(0, "ffn"))),
        _range(at + 60, at + 70, weights[1]),
        _range(at + 80, at + 90, format_step(StepName(1, "attn"))),
        _range(at + 100, at + 110, weights[0]),
        _range(at + 600, at + 950, format_ubatch(UbatchName(1, "decode", 1))),
        _range(at + 610, at + 620, format_step(StepName(0, "ffn"))),
    ]
    issued = [22, 42, 62, 82, 102, 612]
    calls = [call(at + t, at + t + 5, first + i) for i, t in enumerate(issued)]
    copies = [copy(at + t + 100, at + t + 150, first + i, streamId=14) for i, t in ((0, 22), (2, 62), (4, 102))]
    kernels = [kernel(at + t + 200, at + t + 220, first + i) for i, t in ((1, 42), (3, 82), (5, 612))]
    return {"NVTX_EVENTS": ranges, RUNTIME: calls, MEMCPY: copies, KERNEL: kernels}


def _merged(*parts: Tables) -> Tables:
    return {table: [row for part in parts for row in part[table]] for table in parts[0]}


@pytest.fixture
def found(tmp_path: Path) -> Imported:
    tables = _merged(_pass(1000, 0, "off"), _pass(3000, 1, "on"))
    tables["NVTX_EVENTS"].insert(0, domain(_DOMAIN, "hprof"))
    return imported(tmp_path, tables)


def test_passes(found: Imported) -> None:
    rows = found.tables["passes"].to_pylist()
    assert [(row["pass_id"], row["arm"], row["warmup"], row["order"]) for row in rows] == [
        (0, "off", True, 0),
        (1, "on", False, 1),
    ]
    assert {name: rows[1][name] for name in ("n_ubatch", "n_depth", "n_prompt", "n_gen")} == {
        "n_ubatch": 512,
        "n_depth": 64,
        "n_prompt": 512,
        "n_gen": 2,
    }
    assert rows[1]["bytes_h2d"] == 3000
    assert rows[1]["ttft_ns"] == 590  # from the prefill ubatch's start to that of the decode step
    assert rows[1]["decode_ns"] == 400
    assert rows[1]["t_end"] - rows[1]["t_start"] == 1000
    assert [arm.name for arm in found.manifest_fields["arms"]] == ["off", "on"]


def test_each_process_of_a_trace_is_a_boot(tmp_path: Path) -> None:
    """What `nsys profile hprof run --boots 2` records: both count their repetitions from 0."""
    tables = _merged(_pass(1000, 1, "off"), _pass(3000, 2, "on"))
    later = _merged(_pass(5000, 3, "off"), _pass(7000, 4, "on"))
    later["NVTX_EVENTS"].insert(0, domain(_DOMAIN, "hprof"))  # each process registers its own
    for rows in later.values():
        for row in rows:
            row |= {name: row[name] + (1 << 24) for name in ("globalTid", "globalPid") if name in row}
    tables = _merged(tables, later)
    tables["NVTX_EVENTS"].insert(0, domain(_DOMAIN, "hprof"))
    rows = imported(tmp_path, tables).tables["passes"].to_pylist()
    assert [(row["arm"], row["boot"], row["repetition"], row["bytes_h2d"]) for row in rows] == [
        ("off", 0, 0, 3000),
        ("on", 0, 0, 3000),
        ("off", 1, 0, 3000),
        ("on", 1, 0, 3000),
    ]


def test_ubatches(found: Imported) -> None:
    rows = found.tables["ubatches"].to_pylist()
    assert [(r["pass_id"], r["phase"], r["ubatch"], r["n_tokens"], r["n_past"]) for r in rows] == [
        (0, "prefill", 0, 512, 64),
        (0, "decode", 1, 1, 576),
        (1, "prefill", 0, 512, 64),
        (1, "decode", 1, 1, 576),
    ]


def test_rows_know_their_place(found: Imported) -> None:
    rows = [row for row in events(found, *_COLUMNS) if row["pass_id"] == 1 and row["kind"] != "api"]
    assert [tuple(row.values()) for row in rows] == [
        ("h2d", 1, "prefill", 0, 0, "blk.0.ffn", "copy", 1000),
        ("h2d", 1, "prefill", 0, 1, "blk.1.ffn", "copy", 1000),
        # Issued inside the prefill ubatch, after its layer 1: for the decode step.
        ("h2d", 1, "decode", 1, 0, "blk.0.ffn", "copy", 1000),
        ("compute", 1, "prefill", 0, 0, None, "compute", None),
        ("compute", 1, "prefill", 0, 1, None, "compute", None),
        ("compute", 1, "decode", 1, 0, None, "compute", None),
    ]


_COLUMNS = ("kind", "pass_id", "phase", "ubatch", "layer", "tensor", "stream", "whole_bytes")


def test_whole_sizes_come_from_whole_copies_of_any_pass_and_any_number_of_pieces(tmp_path: Path) -> None:
    ranges = [
        _range(0, 40, format_step(StepName(3, "whole", "ffn"))),
        _range(50, 60, format_step(StepName(3, "selective", "ffn"))),
        _range(70, 80, format_step(StepName(4, "selective", "ffn"))),
        domain(_DOMAIN, "hprof"),
    ]
    issued = [(5, 1), (15, 2), (52, 3), (72, 4)]
    tables = {
        "NVTX_EVENTS": ranges,
        RUNTIME: [call(start, start + 2, number) for start, number in issued],
        MEMCPY: [copy(100 + number, 101 + number, number) for _, number in issued],
    }
    rows = [row for row in events(imported(tmp_path, tables), "kind", "whole_bytes") if row["kind"] == "h2d"]
    assert [row["whole_bytes"] for row in rows] == [2000, 2000, 2000, None]


def test_work_without_a_call_belongs_to_the_pass_around_its_time(tmp_path: Path) -> None:
    tables = _pass(1000, 0, "on")
    tables["NVTX_EVENTS"].insert(0, domain(_DOMAIN, "hprof"))
    tables[KERNEL] = [kernel(1500, 1600, 77), kernel(5000, 5100, 78)]
    rows = [row for row in events(imported(tmp_path, tables), "kind", "pass_id") if row["kind"] == "compute"]
    assert [row["pass_id"] for row in rows] == [0, None]


def test_repeated_pass_ids_are_renumbered_in_order(tmp_path: Path) -> None:
    tables = _merged(_pass(1000, 4, "off"), _pass(3000, 4, "on"))
    tables["NVTX_EVENTS"].insert(0, domain(_DOMAIN, "hprof"))
    found = imported(tmp_path, tables)
    assert found.tables["passes"]["pass_id"].to_pylist() == [0, 1]
    assert set(found.tables["events"]["pass_id"].to_pylist()) == {0, 1}


def test_the_domain_of_another_process_is_another(tmp_path: Path) -> None:
    tables = _pass(1000, 0, "on")
    tables["NVTX_EVENTS"].insert(0, domain(_DOMAIN, "hprof", globalTid=GLOBAL_PID + (9 << 24)))
    assert "passes" not in imported(tmp_path, tables).tables


def test_names_of_a_newer_hprof_are_counted(tmp_path: Path) -> None:
    tables = _pass(1000, 0, "on")
    tables["NVTX_EVENTS"] += [domain(_DOMAIN, "hprof"), _range(1200, 1210, "epoch=7"), _range(1220, 1230, "pass=x")]
    assert any("2 ranges of domain hprof" in warning for warning in imported(tmp_path, tables).warnings)


def test_registered_names_come_from_string_ids(tmp_path: Path) -> None:
    tables = _pass(1000, 0, "on")
    strings = [{"id": 10 + i, "value": row["text"]} for i, row in enumerate(tables["NVTX_EVENTS"])]
    tables["NVTX_EVENTS"] = [r | {"text": None, "textId": 10 + i} for i, r in enumerate(tables["NVTX_EVENTS"])]
    tables["NVTX_EVENTS"].append(domain(_DOMAIN, "hprof"))
    found = imported(tmp_path, tables | {"StringIds": [*strings, {"id": 1, "value": "matmul"}]})
    assert found.tables["passes"]["arm"].to_pylist() == ["on"]
    assert "blk.1.ffn" in found.tables["events"]["tensor"].to_pylist()


@pytest.mark.parametrize(
    ("text", "layer"),
    [
        ("model.layers.3.mlp", "3"),
        ("blk.17", "17"),
        ("layer 4", "4"),
        ("Layer=5", "5"),
        ("layers[12]", "12"),
        ("decoder_layer_7", "7"),
        ("[forward] layer: 2", "2"),
        ("n_layers=32", None),
        ("num_hidden_layers 32", None),
        ("layers 0-31", None),
        ("layer 3.5", None),
        ("multilayer 3", None),
        ("LayerNorm 4", None),
        ("layer 99999", None),
        ("aten::mul, op_id = 314339", None),
    ],
)
def test_layer_names(text: str, layer: str | None) -> None:
    found = LAYER_NAME.search(text)
    assert (found.group(1) if found else None) == layer


@pytest.mark.parametrize(
    ("text", "ubatch"), [("ubatch 2", "2"), ("micro-batch=7", "7"), ("u-batch: 1", "1"), ("batch 3", None)]
)
def test_ubatch_names(text: str, ubatch: str | None) -> None:
    found = UBATCH_NAME.search(text)
    assert (found.group(1) if found else None) == ubatch


def test_the_innermost_named_range_counts_and_the_rest_stays_null(tmp_path: Path) -> None:
    ranges = [
        nvtx(0, 100, "ubatch 1"),
        nvtx(10, 40, "model.layers.0"),
        nvtx(15, 35, "aten::mul"),
        nvtx(50, 90, "model.layers.1"),
    ]
    issued = [(20, 1), (60, 2), (95, 3), (150, 4)]
    tables = {
        "NVTX_EVENTS": ranges,
        RUNTIME: [call(start, start + 2, number) for start, number in issued],
        KERNEL: [kernel(1000 + number, 1010 + number, number) for _, number in issued],
    }
    rows = [row for row in events(imported(tmp_path, tables), "kind", "ubatch", "layer") if row["kind"] == "compute"]
    assert [(row["ubatch"], row["layer"]) for row in rows] == [(1, 0), (1, 1), (1, None), (None, None)]


def test_ranges_of_other_threads_and_unfinished_ones_do_not_count(tmp_path: Path) -> None:
    ranges = [nvtx(0, 100, "layer 1", globalTid=42), nvtx(0, None, "layer 2"), nvtx(0, 100, "layer 3", endGlobalTid=9)]
    tables = {"NVTX_EVENTS": ranges, RUNTIME: [call(20, 22, 1)], KERNEL: [kernel(30, 40, 1)]}
    assert [row["layer"] for row in events(imported(tmp_path, tables), "layer")] == [None, None]


def test_pages_that_migrate_inside_the_ranges_are_no_copies_of_the_pass(tmp_path: Path) -> None:
    """bytes_h2d is of explicit copies alone: 3,000 of them, and 777,777 bytes of pages in the same pass."""
    tables = _pass(1000, 0, "on")
    tables["NVTX_EVENTS"].insert(0, domain(_DOMAIN, "hprof"))
    tables[MEMCPY].append(copy(1300, 1400, 101, bytes=777_777, copyKind=11, streamId=0))
    found = imported(tmp_path, tables)
    assert found.tables["passes"]["bytes_h2d"].to_pylist() == [3000]
    assert {row["stream"] for row in events(found, "stream", "detail") if row["detail"] == "uvm"} == {"0"}


def test_a_copy_without_a_size_leaves_the_bytes_of_its_pass_unknown(tmp_path: Path) -> None:
    tables = _merged(_pass(1000, 0, "off"), _pass(3000, 1, "on"))
    tables["NVTX_EVENTS"].insert(0, domain(_DOMAIN, "hprof"))
    tables[MEMCPY][0]["bytes"] = None
    assert imported(tmp_path, tables).tables["passes"]["bytes_h2d"].to_pylist() == [None, 3000]
