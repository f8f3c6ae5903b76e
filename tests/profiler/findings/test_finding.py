"""Figures of findings are a pass's, whatever the number of passes; of the cells of an arm the worst one is told."""

from __future__ import annotations

from typing import Any

import pytest

from profiler.findings import Moment, find_in
from tests.profiler.findings.captures import MS, Row, copy, findings, kernel, view

_RULE = "copies-on-compute-stream"


def _in_line(pass_id: int | None, later_ms: float = 0, copy_ms: float = 2, **more: Any) -> list[Row]:
    """A copy, then 1 ms of compute, on one stream; passes begin a second apart."""
    start_ms = 1000 * (pass_id or 0) + later_ms
    first = copy(start_ms, start_ms + copy_ms, "7", pass_id=pass_id, **more)
    return [first, kernel(start_ms + copy_ms, start_ms + copy_ms + 1, pass_id=pass_id, **more)]


def _passes(n: int, arm: str = "off", **sizes: int) -> list[Row]:
    return [{"pass_id": i, "arm": arm, "warmup": False} | sizes for i in range(n)]


def test_twenty_repetitions_look_like_one() -> None:
    one = findings(_in_line(0), _passes(1))[_RULE]
    many = findings([row for i in range(20) for row in _in_line(i)], _passes(20))[_RULE]
    assert one.evidence.startswith("Arm off, GPU 0 of process 1, in its only pass: 47.7 MiB pinned H2D in 1 copy at")
    assert many.evidence == one.evidence.replace("in its only pass", "a pass (median of 20)")
    assert (many.severity, many.advice) == (one.severity, one.advice)


def test_it_is_the_median_of_the_passes() -> None:
    rows = [row for i, length in enumerate((2, 4, 90)) for row in _in_line(i, copy_ms=length)]
    assert ": 4.00 ms of copies" in findings(rows, _passes(3))[_RULE].evidence
    assert ": 3.00 ms of copies" in findings(rows, _passes(2))[_RULE].evidence


def test_of_several_cells_the_worst_is_told_by_the_sizes_that_differ() -> None:
    rows = [row for i, length in enumerate((2, 9, 3)) for row in _in_line(i, copy_ms=length)]
    passes = [row | {"n_ubatch": 64 * (i + 1), "n_prompt": 512} for i, row in enumerate(_passes(3))]
    evidence = findings(rows, passes)[_RULE].evidence
    assert evidence.startswith("Arm off, -ub 128 (the worst of 3 sizes), GPU 0 of process 1, in its only pass: 215 MiB")


def test_a_cell_in_which_nothing_is_wrong_is_not_counted() -> None:
    rows = [*_in_line(0), kernel(1000, 1009, pass_id=1)]
    passes = [row | {"n_depth": i} for i, row in enumerate(_passes(2))]
    assert findings(rows, passes)[_RULE].evidence.startswith("Arm off, -d 0, GPU 0")


def test_what_lies_outside_of_the_passes_is_not_judged() -> None:
    rows = [*_in_line(None), kernel(10, 12, pass_id=0), *_in_line(None, 20)]
    assert findings(rows, _passes(1)) == {}


def test_where_no_row_is_in_a_pass_the_trace_counts() -> None:
    assert ", over the trace: " in findings(_in_line(None), _passes(1))[_RULE].evidence


def test_devices_have_their_own_figures() -> None:
    rows = [*_in_line(0), *_in_line(0, copy_ms=4, device=1)]
    found = find_in(view(rows, _passes(1)))
    assert [finding.evidence.split(" pinned")[0] for finding in found] == [
        "Arm off, GPU 0 of process 1, in its only pass: 47.7 MiB",
        "Arm off, GPU 1 of process 1, in its only pass: 95.4 MiB",
    ]


@pytest.mark.parametrize(
    ("device", "source", "said"), [("cpu", "hprof", 0), ("sim", "hprof", 0), ("cuda", "hprof", 1), (None, "nsys", 1)]
)
def test_gpus_and_their_means_are_spoken_of_where_there_are_gpus(device: str | None, source: str, said: int) -> None:
    rows = [kernel(0, 6), *(copy(8 + 0.01 * i, 8.01 + 0.01 * i, bytes=100_000) for i in range(100)), kernel(9, 12)]
    found = findings(rows, source=source, machine={"device": device}, link_h2d_gb_s=50.0)
    assert set(found) == {"device-idle", "small-copies"}
    assert all(one.evidence.startswith(("Device 0", "GPU 0")[said]) for one in found.values())
    assert all(("CUDA" in one.advice or "cuda" in one.advice) == bool(said) for one in found.values())


def test_a_finding_says_where_it_is_seen_best() -> None:
    rows = [row for i, length in enumerate((2, 9, 3)) for row in _in_line(i, copy_ms=length)]
    told = findings(rows, _passes(3))[_RULE]
    assert told.moments == (Moment(1, 1000 * MS, 1009 * MS),), "the longest copy of the three passes"


def test_the_longest_gap_is_where_a_device_idles() -> None:
    rows = [kernel(at, at + 1, pass_id=0) for at in (0, 5, 30)] + [kernel(1000, 1002, pass_id=1)]
    assert findings(rows, _passes(2))["device-idle"].moments == (Moment(0, 6 * MS, 30 * MS),)


def test_one_finding_of_two_arms_has_a_moment_of_each() -> None:
    rows = [row for i in range(2) for row in _in_line(i)]
    passes = [row | {"arm": arm} for row, arm in zip(_passes(2), ("off", "on"), strict=True)]
    assert [moment.pass_id for moment in findings(rows, passes)[_RULE].moments] == [0, 1]
