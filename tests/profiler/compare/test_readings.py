"""Figures that programs printed themselves, compared and gated as the others are."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.errors import HprofError
from hprof import main
from profiler.compare import compare_captures
from profiler.compare.leading import leading_changes
from profiler.manifest import ManifestArm
from profiler.storage.writer import PassKey, new_capture

STEP, SPEED = "step_ms", "tok/s"
RULES = {STEP: {"better": "lower"}, SPEED: {"better": "higher"}}


def printed(path: Path, step_ms: float, speed: float, boots: int = 6) -> str:
    """A capture of processes that printed these two, each with a little of its own."""
    writer = new_capture(path, source="command", arms=[ManifestArm("serve")], extra={"readings": RULES})
    for boot in range(boots):
        key = PassKey("serve", repetition=0, order=boot, boot=boot)
        readings = [(STEP, step_ms + boot / 100), (SPEED, speed + boot / 100)]
        writer.add_pass_row(boot, key, t_start=0, t_end=1000 + boot, readings=readings)
    writer.finish()
    return str(path)


def test_readings_lead_beside_the_wall_time_and_have_verdicts(tmp_path: Path) -> None:
    result = compare_captures(printed(tmp_path / "a", 10, 100), printed(tmp_path / "b", 20, 150))
    leading = {change.figure: change.verdict for change in leading_changes(result.changes)}
    assert leading == {"wall_ns": "no difference", STEP: "slower", SPEED: "faster"}


def test_the_table_turns_a_reading_into_times_as_fast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", printed(tmp_path / "a", 10, 100), printed(tmp_path / "b", 20, 150), "--format", "md"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith(r"| step\_ms")]
    assert rows[0][3] == "0.50"


@pytest.mark.parametrize(
    ("limit", "code"), [("step_ms>+5%", 1), ("step_ms>+150%", 0), ("tok/s<-5%", 0), ("tok/s < +80%", 1)]
)
def test_a_gate_may_be_about_a_reading(tmp_path: Path, limit: str, code: int) -> None:
    sides = printed(tmp_path / "a", 10, 100), printed(tmp_path / "b", 20, 150)
    assert main(["compare", *sides, "--fail-on", limit]) == code


def test_a_limit_that_names_nothing_is_told_the_readings(tmp_path: Path) -> None:
    sides = printed(tmp_path / "a", 10, 100), printed(tmp_path / "b", 20, 150)
    with pytest.raises(HprofError, match="did you mean step_ms"):
        compare_captures(*sides, fail_on=["step_m>+5%"])
    with pytest.raises(HprofError, match=r"the figures are step_ms, tok/s, ttft"):
        compare_captures(*sides, fail_on=["qqqq>+5%"])


def test_nothing_is_offered_where_all_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", printed(tmp_path / "a", 10, 100), printed(tmp_path / "b", 20, 150)])
    out = capsys.readouterr().out
    assert "tok/s" in out
    assert "--all" not in out
