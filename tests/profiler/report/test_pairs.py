"""What counts as one measurement of an arm: a pass, or a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.arithmetic.stats import PairDesign
from profiler.capture import Capture
from profiler.compare import compare_captures
from profiler.manifest import Manifest, ManifestArm
from profiler.report.blocks import ON_A_PAGE, Lines, cell_blocks, same_work_block
from profiler.report.build import build_report
from profiler.report.cells import Cell
from profiler.report.pairs import counted, judge
from profiler.storage.writer import PassKey, new_capture
from tests.profiler import makers


def test_a_boot_counts_as_its_median() -> None:
    found = {(0.0, 0.0): 1.0, (0.0, 1.0): 3.0, (1.0, 0.0): 5.0}
    assert counted(found, "boots") == {(0.0, 0.0): pytest.approx(3**0.5), (1.0, 0.0): 5.0}
    assert counted(found, "pairs") is found


def test_boots_are_paired_whatever_their_repetitions() -> None:
    baseline = {(float(boot), 0.0): 100.0 for boot in range(7)}
    arm = {(float(boot), rep): 50.0 for boot in range(6) for rep in (0.0, 1.0)}
    found = judge(baseline, arm, PairDesign(are_pairs=True, unit="boots"), better="lower", noise=0.01)
    assert found is not None
    assert (found.pairs, found.verdict) == (6, "faster")


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (Manifest("hprof"), False),
        (Manifest("llama-bench"), True),
        (Manifest("nsys", extra={"files": [{"arm": "off"}]}), False),
        (Manifest("nsys", extra={"files": [{"arm": "off"}, {"arm": "on"}]}), True),
        (Manifest("nsys", extra={"files": [{"arm": None}, {"arm": None}]}), False),
        (Manifest("nsys", extra={"files": "?"}), False),
    ],
)
def test_arms_of_other_tools_have_processes_of_their_own(manifest: Manifest, expected: bool) -> None:
    assert manifest.has_process_per_arm is expected


def test_twelve_repetitions_of_two_traces_are_no_verdict(tmp_path: Path) -> None:
    files = [{"name": arm, "arm": arm} for arm in ("off", "on")]
    writer = new_capture(tmp_path / "c", source="kineto", extra={"files": files})
    for order in range(24):
        arm, repetition = ("off", "on")[order % 2], order // 2
        key = PassKey(arm, repetition=repetition, order=order, boot=0)
        writer.add_pass_row(order, key, t_start=0, t_end=1000 if arm == "off" else 500)
    writer.finish()
    (cell,) = build_report(Capture.open(tmp_path / "c")).cells
    wall = cell.against_baseline["on"]["wall_ns"]
    assert wall is not None
    assert (wall.ratio, wall.pairs, wall.verdict) == (0.5, 1, "inconclusive")
    assert wall.reason == "one process an arm: boots needed"


def _gated(path: Path, policy: str, *, requested: str = "gated", host_layers: tuple[int, ...] = (0,)) -> Cell:
    """`off` and an arm whose ubatches ran as `policy`, five times as fast."""
    arms = [
        ManifestArm("off", "off", options={"effective": {"host_layers": [0]}}),
        ManifestArm("gated", requested, options={"effective": {"host_layers": list(host_layers)}}),
    ]
    writer = new_capture(path, arms=arms)
    for order in range(12):
        arm, repetition = ("off", "gated")[order % 2], order // 2
        result = makers.dense_result("off" if arm == "off" else "on")
        for ubatch in result.ubatches:
            ubatch.policy = policy if arm == "gated" else "off"
        writer.plan_pass(order, PassKey(arm, 4, 0, 8, 2, repetition, order, 0))
        writer.record_pass(order, result)
    (cell,) = build_report(Capture.open(path)).cells
    return cell


def test_no_verdict_where_both_arms_did_the_same_work(tmp_path: Path) -> None:
    found = _gated(tmp_path / "c", "off").against_baseline["gated"]["ttft_ns"]
    assert found is not None
    assert (found.verdict, found.reason) == ("inconclusive", "same work: prefill ran as off in the two arms")


def test_the_same_work_is_told_once_for_all_cells_and_not_as_inconclusive(tmp_path: Path) -> None:
    cell = _gated(tmp_path / "c", "off")
    blocks = list(cell_blocks(cell, ON_A_PAGE))
    notes = [line for block in blocks if isinstance(block, Lines) for line in block.lines]
    assert not [line for line in notes if "Inconclusive" in line or "same work" in line]
    assert same_work_block([cell, cell]).lines == [
        "Same work: prefill ran as off in the two arms; decode ran as off in the two arms."
    ]
    assert same_work_block([]).lines == []


@pytest.mark.parametrize(
    ("policy", "options"), [("on", {}), ("off", {"requested": "off"}), ("off", {"host_layers": (0, 1)})]
)
def test_other_policies_copies_of_an_arm_and_other_placements_are_judged(
    tmp_path: Path, policy: str, options: dict[str, object]
) -> None:
    found = _gated(tmp_path / "c", policy, **options).against_baseline["gated"]["ttft_ns"]  # type: ignore[arg-type]
    assert found is not None
    assert found.verdict == "faster"


@pytest.mark.parametrize("repetitions", [[0, 1, 2, 0, 1, 2], [None] * 6])
def test_a_trace_of_two_runs_keeps_the_passes_of_both(tmp_path: Path, repetitions: list[int | None]) -> None:
    """Each run counts from 0 anew: the second's passes are further pairs, and take no place of the first's."""
    writer = new_capture(tmp_path / "c", source="nsys", arms=[ManifestArm("off"), ManifestArm("on")])
    for order in range(12):
        arm, at = ("off", "on")[order % 2], order // 2
        took_ns = 1000 if arm == "off" else 500 if at < 3 else 800
        key = PassKey(arm, repetition=repetitions[at], order=order, boot=0)
        writer.add_pass_row(order, key, t_start=0, t_end=took_ns)
    writer.finish()
    capture = Capture.open(tmp_path / "c")
    (cell,) = build_report(capture).cells
    wall = cell.against_baseline["on"]["wall_ns"]
    assert wall is not None
    assert (wall.pairs, wall.verdict) == (6, "faster")
    assert wall.ratio == pytest.approx((0.5 * 0.8) ** 0.5)
    (held,) = (one for one in compare_captures(f"{capture.path}#off", f"{capture.path}#on").changes)
    assert (held.n_a, held.n_b, held.pairs) == (6, 6, 6)
