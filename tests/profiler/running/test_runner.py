"""What a run writes: which passes, in which order, on which clock, and what the manifest says of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from executor.devices.factory import DeviceOptions
from executor.engine.pass_run import PassRun
from executor.errors import HprofError
from executor.memory.budget import Budget
from executor.policies.base import PolicyOptions
from profiler.planning.plan import plan_run
from profiler.planning.request import GridPoint, PlacementOptions
from profiler.report.build import build_report
from profiler.report.measured import what_was_measured
from profiler.report.residency import budget_lines
from profiler.running.runner import CapturePosition, InterruptedRunError, run_capture
from profiler.storage.writer import CaptureWriter
from tests.gguf_models import model_path
from tests.profiler.runs import SMALL_CELL, make_capture, small_request, start_capture

CELLS = (SMALL_CELL, GridPoint(64, 2, 64, 16))


class Steps:
    """Remembers what the runner tells whoever shows progress; can raise before a chosen pass."""

    def __init__(self, fail_before: int | None = None, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.planned = 0
        self.counted: list[bool] = []
        self.descriptions: list[str] = []
        self.stopped = False
        self._fail_before, self._error = fail_before, error

    def start(self, n_passes: int) -> None:
        self.planned = n_passes

    def before_pass(self, description: str) -> None:
        self.descriptions.append(description)
        if len(self.counted) == self._fail_before:
            raise self._error

    def after_pass(self, *, counts: bool) -> None:
        self.counted.append(counts)

    def stop(self) -> None:
        self.stopped = True


def test_every_arm_runs_in_every_cell_in_abba_order(tmp_path: Path) -> None:
    passes = make_capture(tmp_path / "c", small_request(cells=CELLS, repetitions=4)).passes
    measured = passes[~passes.warmup]
    for cell in CELLS:
        rows = measured[measured.n_ubatch == cell.n_ubatch]
        assert rows.arm.tolist() == ["off", "on", "on", "off", "off", "on", "on", "off"]
        assert rows.repetition.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert set(rows.n_depth) == {cell.n_depth}
    assert passes.order.tolist() == list(range(len(passes))) == passes.pass_id.tolist()


def test_a_file_with_experts_on_sim(tmp_path: Path) -> None:
    path = str(model_path("qwen3moe-e8k2-Q4_K"))
    capture = make_capture(tmp_path / "c", small_request(model=path, layers=None, arms=("off", "hot")))
    assert (capture.passes.bytes_h2d > 0).all()
    assert capture.manifest.model["routing"].startswith("lognormal")


def test_an_arm_named_twice_is_measured_against_itself(tmp_path: Path) -> None:
    capture = make_capture(tmp_path / "c", small_request(arms=("off", "off", "on"), repetitions=2))
    measured = capture.passes[~capture.passes.warmup]
    forward = ["off", "off@copy2", "on"]
    assert measured.arm.tolist() == [*forward, *reversed(forward)]
    assert [(arm.name, arm.requested, arm.effective) for arm in capture.manifest.arms] == [
        ("off", "off", "off"),
        ("off@copy2", "off", "off"),
        ("on", "on", "on"),
    ]
    [cell] = build_report(capture).cells
    comparison = cell.against_baseline["off@copy2"]["wall_ns"]
    assert comparison is not None
    assert comparison.pairs == 2
    assert cell.same_tokens is not False


def test_warm_ups_come_first_and_are_marked(tmp_path: Path) -> None:
    passes = make_capture(tmp_path / "c", small_request()).passes
    warm = passes[passes.warmup]
    assert warm.arm.tolist() == ["off", "on", "off", "on"]  # virtual time: the second takes as long as the first
    assert warm.order.max() < passes[~passes.warmup].order.min()
    assert warm.repetition.tolist() == [0, 0, 1, 1]


def test_arms_get_the_same_tokens_in_a_repetition_and_warm_ups_others(tmp_path: Path) -> None:
    passes = make_capture(tmp_path / "c", small_request("cpu", arms=("off", "on", "full"))).passes
    groups = passes.groupby(["warmup", "repetition"]).logits_digest
    assert (groups.nunique() == 1).all()
    assert groups.first().nunique() == len(groups)


def test_passes_lie_one_after_another_on_the_captures_clock(tmp_path: Path) -> None:
    for kind in ("cpu", "sim"):
        capture = make_capture(tmp_path / kind, small_request(kind))
        passes = capture.passes
        assert (passes.t_start >= 0).all()
        assert (passes.t_start.to_numpy()[1:] >= passes.t_end.to_numpy()[:-1]).all()
        events = capture.frame("events").merge(
            passes[["pass_id", "t_start", "t_end"]], on="pass_id", suffixes=("", "_p")
        )
        assert (events.t_start >= events.t_start_p).all()
        assert (events.t_end <= events.t_end_p).all()


def test_the_manifest_says_what_was_run(tmp_path: Path) -> None:
    request = small_request("cpu", seed=3, policy=PolicyOptions(slots=3), arms=("off", "on", "full"))
    manifest = make_capture(tmp_path / "c", request).manifest
    assert manifest.state == "complete"
    assert manifest.argv == ["hprof", "run"]
    assert manifest.link_h2d_gb_s == 100.0
    assert manifest.model["name"] == "tiny-dense"
    assert manifest.model["n_layers"] == 2
    assert len(manifest.model["digest"]) == 16
    assert manifest.grid["n_ubatch"] == [32]
    assert manifest.grid["dtype"] == "float32"
    assert manifest.seeds == {"seed": 3}
    [placement] = manifest.placement["configurations"]
    assert placement["host_layers"] == [0, 1]
    assert placement["host_bytes"] + placement["resident_bytes"] == manifest.model["n_bytes"]
    off, on, full = manifest.arms
    assert (off.name, off.requested, off.effective) == ("off", "off", "off")
    assert on.options["effective"]["slots"] == 3
    assert on.options["effective"]["host_bytes"] == placement["host_bytes"]
    assert full.options["effective"]["host_bytes"] == 0
    assert manifest.machine["torch"] == torch.__version__


def test_an_arm_that_streams_nothing_says_so(tmp_path: Path) -> None:
    request = small_request(placements=(PlacementOptions("", 0, None),))
    manifest = make_capture(tmp_path / "c", request).manifest
    assert [arm.effective for arm in manifest.arms] == ["full", "full"]
    (warning,) = (text for text in manifest.warnings if "no weight is left in host memory" in text)
    assert "all arms do the same" in warning
    assert [arm.notes for arm in manifest.arms] == [[], []], "once is enough"


def test_one_arm_of_several_that_streams_nothing_has_a_note(tmp_path: Path) -> None:
    """All of the model fits, but not beside a bank."""
    policy = PolicyOptions(cache_bytes=4 << 20)
    cached: dict[str, Any] = {"model": "tiny-moe", "layers": 6, "arms": ("off", "cache"), "policy": policy}
    plan = plan_run(small_request(**cached, placements=(PlacementOptions(vram_budget=Budget((1 << 40,))),)))
    (setup,) = plan.setups
    assert setup.budgeted is not None
    whole = PlacementOptions(vram_budget=Budget((plan.model.n_bytes + setup.budgeted.kept_bytes,)))
    off, cache = make_capture(tmp_path / "c", small_request(**cached, placements=(whole,))).manifest.arms
    assert (off.notes, off.effective) == (["no weight is in host memory, so nothing is streamed"], "full")
    assert (cache.notes, cache.effective) == ([], "cache")


def test_a_budget_for_each_device_is_told(tmp_path: Path) -> None:
    budget, devices = Budget((1 << 30, 2 << 30)), DeviceOptions("sim", 2)
    request = small_request(model="tiny-moe", layers=4, placements=(PlacementOptions(vram_budget=budget),))
    manifest = make_capture(tmp_path / "c", replace(request, device=devices)).manifest
    assert list(what_was_measured(manifest).budget_bytes) == [1 << 30, 2 << 30]
    [line] = budget_lines(manifest)
    assert line.startswith("VRAM budget: 1 GiB and 2 GiB by device")


def test_a_changed_load_mode_is_a_note_and_a_warning(tmp_path: Path) -> None:
    manifest = make_capture(tmp_path / "c", small_request("cpu", load_mode="mmap")).manifest
    assert any("--load-mode mmap" in warning for warning in manifest.warnings)
    assert all("--load-mode mmap" in arm.notes[0] for arm in manifest.arms)


def test_placements_are_arms_of_their_own(tmp_path: Path) -> None:
    placements = (PlacementOptions("ffn_up=CPU"), PlacementOptions(n_gpu_layers=1))
    request = small_request(placements=placements, arms=("off", "on", "full"), all_logits=True)
    capture = make_capture(tmp_path / "c", request)
    assert [arm.name for arm in capture.manifest.arms] == ["off", "on", "full", "off@2", "on@2"]
    assert capture.manifest.arms[3].options["placement"] == "-ngl 1"
    copied = capture.passes.groupby("arm").bytes_h2d.first()
    host = {p["suffix"]: p["host_bytes"] for p in capture.manifest.placement["configurations"]}
    n_ubatches = SMALL_CELL.n_prompt // SMALL_CELL.n_ubatch
    assert copied["off"] == copied["on"] > n_ubatches * host[""]  # decoding sends activations
    assert copied["off@2"] > n_ubatches * (host["@2"] // 2)
    assert copied["full"] == 0


def test_progress_is_told_between_passes(tmp_path: Path) -> None:
    steps = Steps()
    make_capture(tmp_path / "c", small_request(), steps)
    assert steps.planned == sum(steps.counted) == 4
    assert steps.stopped
    assert steps.descriptions[0].startswith("loading")
    assert steps.descriptions[1] == "off -ub 32 (warm-up)"


def test_ctrl_c_keeps_the_finished_passes(tmp_path: Path) -> None:
    plan = plan_run(small_request())
    writer = start_capture(plan, tmp_path / "c")
    with pytest.raises(InterruptedRunError, match="keeps 1 measured pass and 4 warm-ups") as caught:
        run_capture(plan, writer, Steps(fail_before=5))
    assert caught.value.exit_code == 130
    assert writer.manifest.state == "interrupted"


@pytest.mark.parametrize(
    ("where", "error", "sentence"),
    [
        (
            PassRun,
            torch.OutOfMemoryError("CUDA out of memory."),
            "device memory ran out while a pass of arm 'off' ran: ",
        ),
        (CaptureWriter, MemoryError(), "host memory ran out while passes were recorded: use --recorder off"),
    ],
)
def test_memory_that_runs_out_is_one_sentence(
    where: Any, error: Exception, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(where, "run" if where is PassRun else "record_pass", run_out)
    plan = plan_run(small_request())
    writer = start_capture(plan, tmp_path / "c")
    with pytest.raises(HprofError) as caught:
        run_capture(plan, writer)
    assert str(caught.value).startswith(sentence)
    assert writer.manifest.state == "interrupted"


def test_any_other_failure_marks_the_capture_too(tmp_path: Path) -> None:
    plan = plan_run(small_request())
    writer = start_capture(plan, tmp_path / "c")
    with pytest.raises(ZeroDivisionError):
        run_capture(plan, writer, Steps(fail_before=1, error=ZeroDivisionError))
    assert writer.manifest.state == "interrupted"


def test_a_later_process_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    plan = plan_run(small_request(repetitions=1))
    writer = start_capture(plan, tmp_path / "c")
    first = run_capture(plan, writer)
    second = run_capture(plan, writer, position=CapturePosition(first.next_pass, first.end_ns, boot=1))
    assert second.next_pass == 2 * first.next_pass
    assert second.end_ns == 2 * first.end_ns  # virtual time


def test_without_recording_only_passes_are_written(tmp_path: Path) -> None:
    capture = make_capture(tmp_path / "c", small_request("cpu", recorder="off"))
    assert capture.table("events").num_rows == 0
    assert (capture.passes.ttft_ns > 0).all()
    assert capture.manifest.grid["recorded"] is False


@pytest.mark.parametrize("all_logits", [True, False])
def test_prefill_moves_the_ffn_bytes_once_a_ubatch_in_every_pass(all_logits: bool, tmp_path: Path) -> None:
    """To the byte: weights in the prefill of each pass = host bytes x ubatches; the last layer's where all logits are
    wanted.
    """
    cells = (GridPoint(96, 2, 32, 0), GridPoint(96, 2, 64, 0))
    request = small_request("cpu", cells=cells, all_logits=all_logits)
    capture = make_capture(tmp_path / "c", request)
    assert capture.manifest.grid["all_logits"] is all_logits
    [placement] = capture.manifest.placement["configurations"]
    events = capture.frame("events")
    weights = events[(events.kind == "h2d") & events.tensor.notna() & (events.phase == "prefill")]
    moved = weights.groupby("pass_id").bytes.sum()
    n_ubatches = capture.passes.n_ubatch.map({32: 3, 64: 2})
    host_bytes = placement["host_bytes"] if all_logits else placement["host_bytes"] // 2
    assert moved.tolist() == (n_ubatches * host_bytes).tolist()
