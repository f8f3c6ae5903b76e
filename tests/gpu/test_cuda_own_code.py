"""`hprof.ab`, `hprof.record` and `hprof.range` on a real GPU: a hand-written double buffer against copies in line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import hprof
from profiler.capture import Capture
from profiler.report.build import build_report

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

N_LAYERS, WIDTH, N_TOKENS = 8, 4096, 8192
LAYER_BYTES = WIDTH * WIDTH * 2


class Streamed:
    """Layers whose weights lie in pinned host memory, computed with a copy in line or one layer ahead."""

    def __init__(self) -> None:
        self.weights = [torch.randn(WIDTH, WIDTH).mul_(0.02).bfloat16().pin_memory() for _ in range(N_LAYERS)]
        self.slots = [torch.empty(WIDTH, WIDTH, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
        self.x = torch.randn(N_TOKENS, WIDTH, dtype=torch.bfloat16, device="cuda")
        self.copies = torch.cuda.Stream()

    def in_line(self) -> torch.Tensor:
        x = self.x
        for layer, weight in enumerate(self.weights):
            with hprof.range(f"ffn {layer}"):
                self.slots[0].copy_(weight, non_blocking=True)
                x = torch.relu(x @ self.slots[0])
        return x

    def ahead(self) -> torch.Tensor:
        compute, x = torch.cuda.current_stream(), self.x
        free = [torch.cuda.Event() for _ in self.slots]
        ready = [torch.cuda.Event() for _ in self.slots]
        for event in free:
            event.record(compute)
        for layer in range(N_LAYERS + 1):
            if layer < N_LAYERS:
                with torch.cuda.stream(self.copies), hprof.range(f"copy {layer}"):
                    self.copies.wait_event(free[layer % 2])
                    self.slots[layer % 2].copy_(self.weights[layer], non_blocking=True)
                    ready[layer % 2].record(self.copies)
            if layer > 0:
                with hprof.range(f"ffn {layer - 1}"):
                    compute.wait_event(ready[(layer - 1) % 2])
                    x = torch.relu(x @ self.slots[(layer - 1) % 2])
                    free[(layer - 1) % 2].record(compute)
        return x


@pytest.fixture(scope="module")
def streamed() -> Streamed:
    return Streamed()


def test_prefetch_is_faster_and_the_recorded_calls_say_why(streamed: Streamed, tmp_path: Path) -> None:
    assert torch.equal(streamed.in_line(), streamed.ahead())
    with hprof.ab(tmp_path / "out", repetitions=8) as ab:
        ab.arm("off", streamed.in_line)
        ab.arm("on", streamed.ahead)
    capture = Capture.open(str(ab.capture))
    found = build_report(capture).cells[0].against_baseline["on"]["wall_ns"]
    assert found is not None
    assert found.verdict == "faster"
    told = capture.manifest.extra["recorded"]["arms"]
    assert told["off"]["bytes_h2d"] == told["on"]["bytes_h2d"] == N_LAYERS * LAYER_BYTES
    assert told["off"]["hidden_copy_ns"] / told["off"]["busy_copy_ns"] < 0.05
    assert told["on"]["hidden_copy_ns"] / told["on"]["busy_copy_ns"] > 0.5


@pytest.mark.parametrize("step", ["in_line", "ahead"])
def test_a_recording_has_every_copy_with_its_layer(streamed: Streamed, tmp_path: Path, step: str) -> None:
    run: Callable[[], torch.Tensor] = getattr(streamed, step)
    with hprof.record(tmp_path / "out", arm="on") as recording:
        run()
    capture = Capture.open(str(recording.capture))
    copies = capture.table("events").to_pandas().query("kind == 'h2d'")
    assert copies["bytes"].tolist() == [LAYER_BYTES] * N_LAYERS
    assert copies.sort_values("t_start")["layer"].tolist() == list(range(N_LAYERS))
    assert set(copies["source_memory"]) == {"pinned"}
    assert capture.manifest.source == "kineto"
    assert not any("no CUDA device" in text for text in capture.manifest.cannot_say)
