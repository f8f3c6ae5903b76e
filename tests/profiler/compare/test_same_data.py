"""One measurement under two names is said to be one, and gives no verdict and no gate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hprof import main
from profiler.compare import compare_captures
from profiler.compare.renderers import headline
from tests.profiler.makers import dense_off_on, imported_without_passes

COPIED = (
    "A and B are the same passes of one capture, which was copied: one measurement held against itself judges nothing."
)


def copied(path: Path) -> tuple[str, str]:
    """A capture of six repetitions of two arms, and its copy under another name."""
    dense_off_on(path / "a")
    return str(path / "a"), str(shutil.copytree(path / "a", path / "copy-of-a"))


def test_a_copy_of_a_capture_is_no_second_measurement(tmp_path: Path) -> None:
    for a, b in (copied(tmp_path), copied(tmp_path / "again")[::-1]):
        result = compare_captures(a, b, fail_on=["ttft>+5%"])
        assert result.warnings[0] == COPIED
        assert headline(result) == "A and B are the same data: nothing was judged."
        assert {change.verdict for change in result.changes} == {"inconclusive", None}
        reasons = {change.against.reason for change in result.changes if change.against is not None}
        assert reasons == {"same work: both sides are the same passes"}
        (gate,) = result.gates
        assert gate.state == "inconclusive"
        assert "both sides are the same passes" in gate.reason


def test_a_capture_beside_itself_judges_nothing_either(tmp_path: Path) -> None:
    a, _ = copied(tmp_path)
    for parts in (("", ""), ("#on", "#on"), ("", "#off,ub=4")):
        result = compare_captures(*(f"{a}{part}" for part in parts), fail_on=["ttft>+5%"])
        assert result.warnings[0].startswith("A and B are the same passes of one capture: one measurement")
        assert [gate.state for gate in result.gates] == ["inconclusive"]


def test_two_arms_of_a_capture_and_its_copy_are_paired_as_those_of_one(tmp_path: Path) -> None:
    a, b = copied(tmp_path)
    apart, in_one = compare_captures(f"{a}#off", f"{b}#on"), compare_captures(f"{a}#off", f"{a}#on")
    assert [(c.figure, c.against) for c in apart.changes] == [(c.figure, c.against) for c in in_one.changes]
    assert {change.verdict for change in apart.changes if change.figure == "ttft_ns"} == {"faster"}
    assert apart.warnings[0] == "A and B are copies of one capture, so that they are paired as arms of one run."
    assert not any("A and B" in text for text in in_one.warnings)


def test_two_runs_that_took_the_same_times_are_two(tmp_path: Path) -> None:
    for name in "ab":
        dense_off_on(tmp_path / name)
    result = compare_captures(str(tmp_path / "a"), str(tmp_path / "b"))
    assert all(change.size == 0 for change in result.changes)
    assert not any(change.is_itself for change in result.changes)
    assert not any("same" in text for text in result.warnings)


def rows_of(path: Path, ns: int, *, said: str | None = "2026-11-01T10:00:00Z") -> Path:
    """A file of llama-bench with a prompt that took so long, twice."""
    row = {"build_commit": "0a1b2c3", "model_filename": "m.gguf", "model_type": "fake 1B", "n_ubatch": 512}
    row |= {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "samples_ns": [ns, ns + 1000], "avg_ns": ns + 500}
    path.write_text(json.dumps(row | ({} if said is None else {"test_time": said})) + "\n")
    return path


@pytest.mark.parametrize(
    ("ns", "said", "is_one"),
    [
        (5_000_000, "2026-11-01T10:00:00Z", True),
        (5_100_000, "2026-11-01T10:00:00Z", False),
        (5_000_000, "2026-11-01T10:00:01Z", False),
        (5_000_000, None, False),  # it does not say when
    ],
)
def test_a_trace_that_was_imported_twice_is_one(tmp_path: Path, ns: int, said: str | None, *, is_one: bool) -> None:
    rows_of(tmp_path / "before.jsonl", 5_000_000, said=said if said is None else "2026-11-01T10:00:00Z")
    rows_of(tmp_path / "after.jsonl", ns, said=said)
    for name in ("before", "after"):
        assert main(["import", f"--arm={name}={tmp_path / name}.jsonl", "-o", str(tmp_path / name)]) == 0
    result = compare_captures(str(tmp_path / "before"), str(tmp_path / "after"))
    assert all(change.is_itself is is_one for change in result.changes)
    told = "A and B are the same passes of one trace, which was imported twice: "
    assert any(text.startswith(told) for text in result.warnings) is is_one


def test_of_captures_without_passes_it_is_said_too(tmp_path: Path) -> None:
    imported_without_passes(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    imported_without_passes(tmp_path / "c")
    told = "A and B are the same data, of one capture, which cannot differ."
    assert compare_captures(str(tmp_path / "a"), str(tmp_path / "b")).warnings[0] == told
    assert told not in compare_captures(str(tmp_path / "a"), str(tmp_path / "c")).warnings
