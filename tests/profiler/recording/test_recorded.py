"""The library end to end: a stand-in for CUDA and CUPTI emits chosen records, and the capture's tables hold them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiler.importers import Imported
from tests.profiler.recording.conftest import Stage

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
    pinned, pageable = events(found, kind="h2d")
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
    assert calls == {"cudaLaunchKernel": 2, "cudaMemcpyAsync": 5}, "and no synchronising call, which has a row already"
    (gpu,) = found.manifest_fields["machine"]["gpus"]
    assert (gpu["name"], gpu["compute_capability"], gpu["copy_engines"]) == ("NVIDIA H200", "9.0", 3)
    (stream,) = found.manifest_fields["extra"]["streams"]
    assert (stream["stream"], stream["kind"], stream["priority"]) == (14, "non-blocking", -5)
    (process,) = found.manifest_fields["extra"]["processes"]
    assert process["ended"]
    assert process["process"] == kernel["process"] == here.programs[0].pid
    assert not found.dropped
    assert not [text for text in found.warnings if "lost" in text or "missing" in text]
