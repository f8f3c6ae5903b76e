"""The library end to end: a stand-in for CUDA and CUPTI emits chosen records, and the capture's tables hold them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiler.capture import Capture
from profiler.importers import Imported
from tests.profiler.recording.conftest import Stage
from tests.support import ROOT

Begin = Callable[..., Stage]
MANGLED = "_ZN3foo4gemmIfEEvPT_i"


def events(found: Imported, **wanted: Any) -> list[dict[str, Any]]:
    rows = found.tables["events"].to_pylist()
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


@pytest.mark.parametrize("cuda", [12, 13])
def test_everything_that_cupti_says(stage: Begin, standins: dict[int, Path], cuda: int) -> None:
    if cuda not in standins:
        pytest.skip(f"no headers of CUPTI {cuda}: pip install 'hprof[record]'")
    here = stage(cuda)
    here.run(
        f"kernel('{MANGLED}', 1000, 5000)",
        "copy(1, 2, 3, 1 << 20, 2000, 4000)",  # host to device, pinned
        "copy(1, 1, 3, 100, 4000, 4500)",  # pageable
        "copy(1, 5, 3, 50, 4500, 4600)",  # from managed memory
        "copy(2, 3, 2, 200, 5000, 5500)",  # back, into pinned memory
        "copy(8, 3, 3, 300, 5500, 5600)",
        "peer_copy(400, 5600, 5700)",
        "memset(500, 5700, 5800)",
        "sync(3, 7, 6000, 9000)",
    )
    found = here.read()
    assert found.source == "cupti"
    (kernel,) = events(found, kind="compute", detail=None)
    assert (kernel["name"], kernel["stream"], kernel["device"]) == ("void foo::gemm<float>(float*, int)", "7", 0)
    pinned, pageable, managed = events(found, kind="h2d")
    assert (managed["bytes"], managed["source_memory"]) == (50, "managed")
    assert (pinned["bytes"], pinned["source_memory"], pinned["stream"]) == (1 << 20, "pinned", "14")
    assert (pinned["t_start"] - kernel["t_start"], pinned["t_end"] - pinned["t_start"]) == (1000, 2000)
    assert (pageable["bytes"], pageable["source_memory"]) == (100, "pageable")
    (back,) = events(found, kind="d2h")
    assert (back["bytes"], back["source_memory"]) == (200, "pinned")
    within, peer = events(found, kind="d2d")
    assert (within["bytes"], within["detail"], peer["bytes"], peer["detail"]) == (300, None, 400, "peer")
    (memset,) = events(found, detail="memset")
    assert memset["bytes"] == 500
    (sync,) = events(found, kind="sync")
    assert (sync["name"], sync["device"], sync["stream"]) == ("stream synchronize", 0, "7")
    calls = Counter(row["name"] for row in events(found, kind="api"))
    assert calls == {"cudaLaunchKernel": 2, "cudaMemcpyAsync": 6}, "and no synchronising call, which has a row already"
    (gpu,) = found.manifest_fields["machine"]["gpus"]
    assert (gpu["name"], gpu["compute_capability"], gpu["copy_engines"]) == ("NVIDIA H200", "9.0", 3)
    (stream,) = found.manifest_fields["extra"]["streams"]
    assert (stream["stream"], stream["kind"], stream["priority"]) == (14, "non-blocking", -5)
    (process,) = found.manifest_fields["extra"]["processes"]
    assert process["ended"]
    assert process["process"] == kernel["process"] == here.programs[0].pid
    assert not found.dropped
    assert not [text for text in found.warnings if "lost" in text or "missing" in text]


def test_hprofs_own_ranges_give_passes_ubatches_and_layers_back(stage: Begin) -> None:
    here = stage()
    here.run(
        "import nvtx; own = nvtx.get_domain('hprof'); at = own.get_event_attributes",
        "asked = 'pass=4 arm=on n_ubatch=32 n_depth=0 n_prompt=32 n_gen=1 repetition=2 warmup=0'",
        "own.push_range(at(asked)); own.push_range(at('ubatch=0 phase=prefill n_tokens=32'))",
        "own.push_range(at('layer=3 tensor=ffn_up what=whole', payload=1000)); copy(1, 2, 3, 1000, 10, 20)",
        "own.pop_range(); own.push_range(at('layer=3 what=ffn')); kernel('gemm', 20, 40); own.pop_range()",
        "own.pop_range(); own.pop_range(); kernel('after', 50, 60)",
    )
    found = here.read()
    (copy,) = events(found, kind="h2d")
    assert (copy["pass_id"], copy["phase"], copy["ubatch"], copy["layer"]) == (4, "prefill", 0, 3)
    assert (copy["tensor"], copy["whole_bytes"], copy["stream"]) == ("ffn_up", 1000, "copy")
    (kernel,) = events(found, name="gemm")
    assert (kernel["pass_id"], kernel["layer"], kernel["stream"]) == (4, 3, "compute")
    (after,) = events(found, name="after")
    assert after["pass_id"] is None
    (row,) = found.tables["passes"].to_pylist()
    assert (row["arm"], row["n_ubatch"], row["repetition"], row["bytes_h2d"]) == ("on", 32, 2, 1000)
    assert [arm.name for arm in found.manifest_fields["arms"]] == ["on"]


def test_all_sorts_of_ranges(stage: Begin) -> None:
    here = stage()
    here.run(
        "import nvtx; from threading import Thread",
        "plain = nvtx.push_range('layer 5'); kernel('a', 1, 2); nvtx.pop_range()",
        "range_id = nvtx.start_range('layer 6'); kernel('b', 3, 4); nvtx.end_range(range_id)",
        "def work():\n nvtx.push_range('layer 7'); kernel('c', 5, 6); nvtx.pop_range()",
        "nvtx.push_range('layer 8'); t = Thread(target=work); t.start(); t.join(); kernel('d', 7, 8); nvtx.pop_range()",
        "nvtx.push_range('layer 9'); nvtx.mark('here'); kernel('e', 9, 10)",  # never popped
    )
    found = here.read()
    layers = {row["name"]: row["layer"] for row in events(found, kind="compute")}
    assert layers == {"a": 5, "b": 6, "c": 7, "d": 8, "e": None}
    assert found.manifest_fields["extra"]["nvtx_marks"] == 1


def test_calls_of_the_driver(stage: Begin) -> None:
    """Triton launches through the driver. One that the runtime makes is told once, and only calls that launch are."""
    here = stage()
    here.run(
        "import threading; t = threading.get_native_id(); at = lambda: c_uint64(time.time_ns())",
        "Cuda.calls.standin_call(1, 307, t, 900, at(), at())",  # cuLaunchKernel
        "Cuda.calls.standin_call(0, 13, t, 901, at(), at()); Cuda.calls.standin_call(1, 307, t, 901, at(), at())",
        "Cuda.calls.standin_call(1, 17, t, 902, at(), at()); kernel('k', 1, 2)",
    )
    calls = {row["correlation_id"]: row["name"] for row in events(here.read(), kind="api")}
    assert calls == {900: "cuLaunchKernel", 901: "cudaLaunchKernel", 1: "cudaLaunchKernel"}


GRAPH = ("graph_node(0)", "graph_node(0)", "graph_node(1)", "kernel('inside', 1, 2, node=5)", "graph(9, 1, 3_000_001)")


@pytest.mark.parametrize("graphs", ["auto", "graph", "node"])
def test_graphs(stage: Begin, graphs: str) -> None:
    here = stage(graphs=graphs)
    here.run(*GRAPH)
    found = here.read()
    names = {row["name"] for row in events(found, kind="compute")}
    said = [text for text in found.warnings if "recorded as a whole" in text]
    if graphs == "node":
        assert (names, said) == ({"inside"}, [])
    else:
        assert names == {"CUDA graph"}
        assert said[0].startswith(
            "1 CUDA graph launch of together 3.0 ms recorded as a whole (the graphs were made of 2 kernel nodes, "
            "1 memcpy node): "
        )


def test_device_memory_over_time(stage: Begin) -> None:
    here = stage()
    here.run(
        "memory(1, 3, 0x1000, 100, 10); memory(1, 3, 0x2000, 50, 20); memory(2, 3, 0x1000, 0, 30)",
        "memory(1, 3, 0x1000, 7, 40); memory(1, 2, 0x9000, 1 << 30, 50)",  # pinned host memory is none of the device's
        "memory(2, 3, 0x7000, 999, 60); kernel('k', 0, 1)",  # was allocated before
    )
    found = here.read()
    (memory,) = found.manifest_fields["extra"]["device_memory"]
    assert (memory["device"], memory["peak_bytes"], memory["last_bytes"]) == (0, 150, 57)
    start = memory["points"][0][0]
    assert [[at - start, held] for at, held in memory["points"]] == [[0, 100], [10, 150], [20, 50], [30, 57], [50, 57]]


def test_what_is_left_out(stage: Begin) -> None:
    here = stage(without=("calls", "waits", "memory"))
    here.run("kernel('k', 1, 2); sync(3, 7, 3, 4); memory(1, 3, 0x1000, 100, 10)")
    found = here.read()
    assert {row["kind"] for row in found.tables["events"].to_pylist()} == {"compute"}
    assert found.manifest_fields["extra"]["device_memory"] == []
    assert "calls, waits, memory: left out with --without" in found.cannot_say


def test_names_that_would_steer_a_terminal_stay_data(stage: Begin) -> None:
    evil = "\\x1b[31mred\\x07[bold]\\u202e"
    here = stage()
    here.run(f"import nvtx; nvtx.push_range('layer 1 {evil}'); kernel('{evil}', 1, 2); nvtx.pop_range()")
    (kernel,) = events(here.read(), kind="compute")
    assert kernel["name"] == "\x1b[31mred\x07[bold]\u202e"
    assert kernel["layer"] == 1


def test_a_name_beyond_all_measure_is_cut(stage: Begin) -> None:
    here = stage()
    here.run("kernel('k' * 100_000, 1, 2)", "kernel('short', 3, 4)")
    assert sorted(len(row["name"]) for row in events(here.read(), kind="compute")) == [5, 1024]


def test_a_range_that_was_open_when_cuda_started(stage: Begin) -> None:
    here = stage()
    here.run(
        "import nvtx; nvtx.push_range('layer 4'); start_cuda(os.environ['HPROF_LIBCUPTI'])",
        "kernel('k', 1, 2); nvtx.pop_range()",
        cuda=False,
    )
    (kernel,) = events(here.read(), kind="compute")
    assert kernel["layer"] == 4


def test_hprofs_own_run_seen_from_outside(stage: Begin, tmp_path: Path) -> None:
    """Without a GPU its ranges alone are seen: the same passes and ubatches as in its own capture."""
    here = stage()
    words = [sys.executable, "-m", "hprof", "run", "--device", "sim", "-m", "tiny-dense", "--layers", "2", "-o", "own"]
    words += ["-p", "64", "-n", "3", "-ub", "32", "-r", "2", "--json"]
    environment = here.environment | {"PYTHONPATH": str(ROOT)}
    subprocess.run(words, env=environment, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    found, own = here.read(), Capture.open(str(tmp_path / "own"))
    columns = ["pass_id", "arm", "n_ubatch", "n_depth", "n_prompt", "n_gen", "repetition", "warmup"]
    assert found.tables["passes"].select(columns).to_pylist() == own.table("passes", columns).to_pylist()
    assert set(found.tables["passes"]["bytes_h2d"].to_pylist()) == {None}, "not 0: no device was seen"
    columns = ["pass_id", "phase", "ubatch", "n_tokens", "n_past"]
    seen = found.tables["ubatches"].select(columns).sort_by([("pass_id", "ascending")]).to_pylist()
    assert sorted(map(str, seen)) == sorted(map(str, own.table("ubatches", columns).to_pylist()))
