"""Rules about copies: each fires on a capture made for it, with the right figures, and is silent beside it."""

from __future__ import annotations

import pytest

from profiler.manifest import Arm
from tests.profiler.findings.captures import MB, api, copy, findings, kernel


def test_copies_on_the_compute_stream() -> None:
    rows = [step for i in range(10) for step in (copy(3 * i, 3 * i + 2, "7"), kernel(3 * i + 2, 3 * i + 3))]
    found = findings(rows)
    inline = found["copies-on-compute-stream"]
    assert inline.severity == "serious"
    assert inline.evidence == (
        "GPU 0 of process 1, over the trace: 500.0 MB pinned H2D in 10 copies at 25.0 GB/s on stream 7, which also "
        "runs the kernels: 20.0 ms of copies, 0 ms (0.0 %) hidden behind 10.0 ms of compute."
    )
    assert "up to 10.0 ms of the 20.0 ms can be hidden" in inline.advice
    assert set(found) == {"copies-on-compute-stream"}


def test_the_advice_says_when_overlap_alone_cannot_help() -> None:
    rows = [step for i in range(10) for step in (copy(50 * i, 50 * i + 49, "7"), kernel(50 * i + 49, 50 * i + 50))]
    advice = findings(rows)["copies-on-compute-stream"].advice
    assert "copying takes 49x as long as computing" in advice
    assert "hides at most 10.0 ms (2.0 %)" in advice
    assert "move fewer bytes" in advice


def test_compute_that_hides_other_copies_is_not_offered_twice() -> None:
    rows = [copy(0, 10, "7"), kernel(10, 20), copy(10, 16, "14")]
    assert "up to 4.0 ms of the 10.0 ms can be hidden" in findings(rows)["copies-on-compute-stream"].advice


def test_in_an_imported_trace_an_arm_called_off_is_judged_like_any_other() -> None:
    rows = [copy(0, 2, "compute", pass_id=0), kernel(2, 3, "compute", pass_id=0)]
    rows += [copy(10, 12, "copy", pass_id=1), kernel(10, 12, "compute", pass_id=1)]
    passes = [{"pass_id": 0, "arm": "off", "warmup": False}, {"pass_id": 1, "arm": "on", "warmup": False}]
    found = findings(rows, passes, source="nsys")
    assert found["copies-on-compute-stream"].severity == "serious"


@pytest.mark.parametrize(
    ("requested", "severity", "advice"),
    [
        ("off", "info", "In line by design: compare with an arm that copies ahead"),
        ("off-whole+cache", "info", "In line by design: compare with an arm that copies ahead"),
        ("gated", "info", "In line by design, in ubatches of which the policy decides"),
        ("hot+cache", "info", "In line by design: what the expert cache misses"),
        ("on", "serious", "Copy the next layer on a stream of its own"),
    ],
)
def test_an_arm_is_judged_by_what_was_asked_of_it(requested: str, severity: str, advice: str) -> None:
    rows = [copy(0, 2, "compute", pass_id=0), kernel(2, 3, "compute", pass_id=0)]
    passes = [{"pass_id": 0, "arm": "it@2", "warmup": False}]
    found = findings(rows, passes, source="hprof", arms=[Arm("it@2", requested)])["copies-on-compute-stream"]
    assert found.severity == severity
    assert found.advice.startswith(advice)


def test_prefetch_that_works_is_no_finding() -> None:
    rows = [step for i in range(10) for step in (copy(i, i + 0.9), kernel(i, i + 1))]
    assert findings(rows) == {}


def test_a_stray_kernel_does_not_make_a_copy_stream_a_compute_stream() -> None:
    rows = [step for i in range(10) for step in (copy(i, i + 0.9), kernel(i, i + 1))]
    rows.append(kernel(9.95, 9.96, "14"))
    assert "copies-on-compute-stream" not in findings(rows)


def test_pageable_copies() -> None:
    slow = [copy(10 * i, 10 * i + 5, bytes=50 * MB, source_memory="pageable") for i in range(4)]
    rows = [*slow, *(copy(10 * i + 5, 10 * i + 6) for i in range(4)), *(kernel(10 * i, 10 * i + 10) for i in range(4))]
    pageable = findings(rows)["pageable-copies"]
    assert pageable.severity == "serious"
    assert pageable.evidence == (
        "GPU 0 of process 1, over the trace: 200.0 MB pageable H2D in 4 copies at 10.0 GB/s in 20.0 ms, 83.3 % of the "
        "time spent on copies to the device; copies from pinned memory reach 25.0 GB/s."
    )


def test_a_few_pageable_bytes_do_not_matter() -> None:
    rows = [copy(0, 10), kernel(0, 10), copy(10, 10.01, bytes=784, source_memory="pageable"), kernel(10, 10.01)]
    assert findings(rows) == {}


def test_synchronous_copies_by_name_and_by_how_long_the_call_took() -> None:
    rows = [kernel(0, 30)]
    for i, (name, call_ms) in enumerate([("cudaMemcpy", 0.1), ("cudaMemcpyAsync", 3), ("cudaMemcpyAsync", 0.1)]):
        start = 10 * i
        rows += [copy(start + 1, start + 3, correlation_id=i + 1), api(start, start + call_ms, name, i + 1)]
    synchronous = findings(rows)["synchronous-copies"]
    assert synchronous.severity == "warning"
    assert "2 copies" in synchronous.evidence
    assert "(cudaMemcpy, cudaMemcpyAsync), 4.0 ms in all" in synchronous.evidence


def test_calls_of_another_process_are_another_thing() -> None:
    rows = [kernel(0, 30), copy(1, 3, correlation_id=1), api(0, 9, "cudaMemcpy", 1) | {"process": 2}]
    assert "synchronous-copies" not in findings(rows)


def test_small_copies() -> None:
    rows = [copy(0, 4, bytes=100 * MB)]
    rows += [copy(4 + 0.01 * i, 4 + 0.01 * i + 0.01, bytes=100_000) for i in range(100)]
    rows.append(kernel(0, 5))
    small = findings(rows)["small-copies"]
    # 100 copies of 10 us, of which 4 us each would carry the bytes at 25 GB/s
    assert small.severity == "warning"
    assert "100 copies" in small.evidence
    assert "1.1 MB from which this link is 90 % efficient (25.0 GB/s, 5.0 us a call): 600.0 us more" in small.evidence


def test_the_measured_link_counts_where_it_is_known() -> None:
    rows = [copy(0.01 * i, 0.01 * i + 0.01, bytes=100_000) for i in range(100)]
    rows.append(kernel(0, 1))
    assert "small-copies" not in findings(rows)
    assert "(50.0 GB/s" in findings(rows, link_h2d_gb_s=50.0)["small-copies"].evidence


def test_uploads_of_something_else_do_not_count_where_tensors_are_named() -> None:
    rows = [step for i in range(20) for step in (copy(i, i + 0.9, tensor="ffn"), kernel(i, i + 1))]
    rows += [copy(20 + 0.1 * i, 20.1 + 0.1 * i, "7", bytes=512) for i in range(20)]
    assert findings(rows) == {}


def test_arms_and_devices_with_the_same_advice_share_a_finding() -> None:
    rows = [step for i in range(10) for step in (copy(3 * i, 3 * i + 2, "7"), kernel(3 * i + 2, 3 * i + 3))]
    inline = findings(rows + [step | {"device": 1} for step in rows])["copies-on-compute-stream"]
    assert "GPU 0 of process 1" in inline.evidence
    assert "GPU 1 of process 1" in inline.evidence
