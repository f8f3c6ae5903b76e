"""Which arms are held against one another, and what excuses a difference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from executor.passes import ExpertsRecord
from profiler.capture import Capture
from profiler.manifest import ManifestArm
from profiler.report.build import build_report
from profiler.report.cells import Cell
from profiler.storage.writer import PassKey, new_capture
from tests.profiler import makers


def _arm(name: str, host_layers: list[int]) -> ManifestArm:
    return ManifestArm(name, requested=name, effective=name, options={"effective": {"host_layers": host_layers}})


def _cell(
    path: Path, arms: list[ManifestArm], digests: list[str], tokens: list[list[int]], *, routing: str | None
) -> Cell:
    """Six passes an arm, each with some host compute; a MoE model whose routing is as given."""
    writer = new_capture(path, arms=arms)
    writer.update_manifest(model={"routing": routing})
    order = 0
    for repetition in range(6):
        for arm, digest, chosen in zip(arms, digests, tokens, strict=True):
            result = makers.dense_result(arm.name)
            result.experts.append(ExpertsRecord("prefill", 0, 0, 4, 8, 2, 2, None, None, bytes([0b00000101])))
            result.logits_digest, result.tokens = digest, chosen
            result.events.append(replace(result.events[-1], kind="cpu_compute", stream="host"))
            writer.plan_pass(order, PassKey(arm.name, 4, 0, 8, 2, repetition, order, 0))
            writer.record_pass(order, result)
            order += 1
    (cell,) = build_report(Capture.open(str(path))).cells
    return cell


def test_arms_with_other_layers_on_the_host_are_not_held_against_one_another(tmp_path: Path) -> None:
    """As under a VRAM budget, where prefetch pays for its slots with a layer."""
    arms = [_arm("off", [0]), _arm("on", [0, 1]), _arm("gated", [0, 1])]
    cell = _cell(tmp_path / "c", arms, ["a", "b", "b"], [[5, 7], [5, 8], [5, 7]], routing="lognormal")
    assert (cell.same_tokens, cell.bit_identical) == (False, True)
    assert cell.notes == [
        "on generated other tokens than off (they compute different layers on the host, which rounds differently).",
        "Logits are compared among arms that compute in the same places: off; on, gated.",
    ]


def test_arms_with_the_same_layers_on_the_host_must_agree(tmp_path: Path) -> None:
    arms = [_arm("off", [0]), _arm("on", [0])]
    cell = _cell(tmp_path / "c", arms, ["a", "b"], [[5, 7], [5, 7]], routing="lognormal")
    assert (cell.same_tokens, cell.bit_identical) == (True, False)
    assert cell.faults[0].startswith("LOGITS DIFFER: on and")


def test_other_tokens_are_other_work_only_where_they_choose_the_experts(tmp_path: Path) -> None:
    arms = [_arm("off", [0]), _arm("on", [0, 1])]
    tokens = [[5, 7], [5, 8]]
    given = _cell(tmp_path / "given", arms, ["a", "b"], tokens, routing="lognormal")
    own = _cell(tmp_path / "own", arms, ["a", "b"], tokens, routing=None)
    found = [cell.against_baseline["on"]["decode_tokens_per_s"] for cell in (given, own)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].reason is None
    assert found[1].reason == "different workload: other tokens were generated, which use other experts"
