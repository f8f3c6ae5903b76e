"""Rules about copies: each fires on a capture made for it, with the right figures, and is silent beside it. Rules
about standing still: the copy engine, prefetched copies, the device. And what all findings have in common.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.policies import find_traits
from profiler.findings import RULES, find, find_in
from profiler.findings.finding import SEVERITIES
from profiler.manifest import ManifestArm
from tests.profiler.findings.captures import MB, Row, api, copy, findings, kernel, row, view
from tests.profiler.makers import dense_off_on


def test_copies_on_the_compute_stream() -> None:
    rows = [step for i in range(10) for step in (copy(3 * i, 3 * i + 2, "7"), kernel(3 * i + 2, 3 * i + 3))]
    found = findings(rows)
    inline = found["copies-on-compute-stream"]
    assert inline.severity == "serious"
    assert inline.evidence == (
        "GPU 0 of process 1, over the trace: 477 MiB pinned H2D in 10 copies at 25.0 GB/s on stream 7, which also "
        "runs the kernels: 20.0 ms of copies, 0 ns (0 %) hidden behind 10.0 ms of compute."
    )
    assert "up to 10.0 ms of the 20.0 ms can be hidden" in inline.advice
    assert set(found) == {"copies-on-compute-stream"}


def test_the_advice_says_when_overlap_alone_cannot_help() -> None:
    rows = [step for i in range(10) for step in (copy(50 * i, 50 * i + 49, "7"), kernel(50 * i + 49, 50 * i + 50))]
    advice = findings(rows)["copies-on-compute-stream"].advice
    assert "only 10.0 ms of compute have no copy beside them, so that hides at most 2.0 % of the 490 ms" in advice
    assert "move fewer bytes" in advice


def test_compute_that_hides_other_copies_is_not_offered_twice() -> None:
    rows = [copy(0, 10, "7"), kernel(10, 20), copy(10, 16, "14")]
    assert "up to 4.00 ms of the 10.0 ms can be hidden" in findings(rows)["copies-on-compute-stream"].advice


def test_in_an_imported_trace_an_arm_called_off_is_judged_like_any_other() -> None:
    rows = [copy(0, 2, "compute", pass_id=0), kernel(2, 3, "compute", pass_id=0)]
    rows += [copy(10, 12, "copy", pass_id=1), kernel(10, 12, "compute", pass_id=1)]
    passes = [{"pass_id": 0, "arm": "off", "warmup": False}, {"pass_id": 1, "arm": "on", "warmup": False}]
    found = findings(rows, passes, source="nsys")
    assert found["copies-on-compute-stream"].severity == "serious"


@pytest.mark.parametrize(
    ("requested", "severity", "advice"),
    [
        ("off", "info", "In line by design: compare with on, auto and hot."),
        ("both", "info", "In line by design: compare with off and cpu."),
        ("off-whole+cache", "info", "In line by design: compare with on, auto and hot."),
        ("gated", "info", "In line by design, where the policy chooses to copy in line; "),
        ("hot+cache", "info", "In line by design: what the expert cache misses"),
        ("on", "serious", "Copy the next layer on a stream of its own"),
    ],
)
def test_an_arm_is_judged_by_what_was_asked_of_it(requested: str, severity: str, advice: str) -> None:
    rows = [copy(0, 2, "compute", pass_id=0), kernel(2, 3, "compute", pass_id=0)]
    passes = [{"pass_id": 0, "arm": "it@2", "warmup": False}]
    found = findings(rows, passes, source="hprof", arms=[ManifestArm("it@2", traits=find_traits(requested))])[
        "copies-on-compute-stream"
    ]
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
        "GPU 0 of process 1, over the trace: 191 MiB pageable H2D in 4 copies at 10.0 GB/s in 20.0 ms, 83.3 % of the "
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
    assert "(cudaMemcpy, cudaMemcpyAsync), 4.00 ms in all" in synchronous.evidence


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
    assert "1.07 MiB from which this link is 90 % efficient (25.0 GB/s, 5.00 us a call): 600 us more" in small.evidence


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


def test_a_copy_engine_that_idles_while_copies_are_exposed() -> None:
    # 2 ms of copy, 2 ms idle under compute, five times: 8 ms idle, 10 ms exposed
    rows = [step for i in range(5) for step in (copy(4 * i, 4 * i + 2), kernel(4 * i + 2, 4 * i + 4))]
    idle = findings(rows)["idle-copy-engine"]
    assert idle.severity == "serious"
    assert "idle for 8.00 ms between the first and last copy that ran ahead, while 10.0 ms of their" in idle.evidence
    assert "up to 8.00 ms" in idle.advice


def test_copies_in_line_are_neither_ahead_nor_gaps_of_the_copy_engine() -> None:
    """A prompt copied ahead back to back, then decode that copies into a bank, in line: nothing could be earlier."""
    ahead = [step for i in range(5) for step in (copy(4 * i, 4 * i + 4), kernel(4 * i + 3.9, 4 * i + 4))]
    bank = [step for i in range(20, 38, 2) for step in (copy(i, i + 1, "7"), kernel(i + 1, i + 2))]
    assert "idle-copy-engine" not in findings(ahead + bank)
    between = [copy(0, 10), copy(10, 18, "7"), copy(18, 28), kernel(28, 32)]
    assert "idle-copy-engine" not in findings(between)


def test_a_slot_is_not_advised_for_a_gain_that_is_small_against_the_pass() -> None:
    def rows(copy_ms: float) -> list[Row]:
        return [copy(0, copy_ms), kernel(copy_ms, 100), copy(100, 100 + copy_ms), kernel(100 + copy_ms, 200)]

    assert "idle-copy-engine" not in findings(rows(1.9))
    assert findings(rows(2.1))["idle-copy-engine"].severity == "info"


def test_gaps_of_the_copy_engine_do_not_matter_when_all_is_hidden() -> None:
    rows = [copy(4 * i, 4 * i + 2) for i in range(5)] + [kernel(0, 20)]
    assert findings(rows) == {}


def _streamed(late: bool, name: str = "copy whole", stream: str = "copy") -> tuple[list[Row], list[Row]]:
    """Five layers; compute stands ready at 10 i, its copy begins then (late) or 5 ms before, and takes 5 ms."""
    rows: list[Row] = []
    for i in range(1, 6):
        ready = 10 * i
        begin = ready if late else ready - 5
        more: dict[str, Any] = {"pass_id": 0, "correlation_id": i}
        rows.append(copy(begin, begin + 6, stream, **more) | {"name": name})
        rows.append(row("wait", ready, begin + 6, "compute", waits_for=i, pass_id=0))
        rows.append(kernel(begin + 6, ready + 10, "compute", waits_for=i, pass_id=0))
    return rows, [{"pass_id": 0, "arm": "on", "warmup": False}]


def test_late_prefetch() -> None:
    rows, passes = _streamed(late=True)
    for wait in (r for r in rows if r["kind"] == "wait"):
        wait["t_start"] -= 2 * 10**6
    late = findings(rows, passes, source="hprof")["late-prefetch"]
    assert "5 of 5 prefetched copies" in late.evidence
    assert "held it up for 32.0 ms in all" in late.evidence  # the first could not have begun earlier
    assert late.evidence.startswith("Arm on, GPU 0 of process 1")


def test_a_copy_that_begins_as_its_reader_stands_ready_is_late_and_its_wait_is_shown() -> None:
    rows, passes = _streamed(late=True)
    found = findings(rows, passes, source="hprof")["late-prefetch"]
    waits = [(r["t_start"], r["t_end"]) for r in rows if r["kind"] == "wait"]
    (moment,) = found.moments
    assert (moment.t_start, moment.t_end) in waits[1:]
    assert "5 of 5 prefetched copies" in found.evidence


def test_copies_that_began_in_time_are_not_late() -> None:
    rows, passes = _streamed(late=False)
    assert "late-prefetch" not in findings(rows, passes, source="hprof")


def test_copies_that_must_wait_for_the_router_or_run_in_line_are_not_late() -> None:
    for name, stream in (("copy missing", "copy"), ("copy whole", "compute")):
        rows, passes = _streamed(late=True, name=name, stream=stream)
        assert "late-prefetch" not in findings(rows, passes, source="hprof")


def test_a_device_that_does_nothing() -> None:
    rows = [kernel(0, 6), kernel(8, 9.5), kernel(9.55, 10)]
    idle = findings(rows)["device-idle"]
    assert idle.severity == "warning"
    assert "idle for 2.05 ms of 10.0 ms (20.5 %); 1 gap of 0.1 ms or more, the longest 2.00 ms" in idle.evidence


def test_many_short_gaps() -> None:
    idle = findings([kernel(at, at + 0.45) for at in (0, 0.5, 1, 1.5)])["device-idle"]
    assert "no gap is longer than 50.0 us" in idle.evidence


def test_a_device_whose_copies_were_not_recorded_may_not_have_been_idle() -> None:
    """Of the pass without copies it is unknown; beside it, 8 ms of the pass that tells its copies were idle."""
    rows = [kernel(0, 1, pass_id=0), kernel(9, 10, pass_id=0)]
    rows += [copy(20, 21, pass_id=1), kernel(29, 30, pass_id=1)]
    passes = [{"pass_id": at, "arm": arm, "warmup": False} for at, arm in enumerate(("off", "on"))]
    missing = {"files": [{"arm": "off", "unrecorded_copies": 40}, {"arm": "on"}]}
    evidence = findings(rows, passes, extra=missing)["device-idle"].evidence
    assert "Arm on, GPU 0 of process 1, in its only pass: idle for 8.00 ms of 10.0 ms" in evidence
    assert "Arm off" not in evidence
    assert "Arm off" in findings(rows, passes)["device-idle"].evidence
    told = [passes[0] | {"bytes_h2d": 0}, passes[1]]
    assert "Arm off" in findings(rows, told, extra=missing)["device-idle"].evidence


def test_without_passes_a_device_whose_copies_were_not_recorded_is_not_said_to_idle() -> None:
    rows = [kernel(0, 1), kernel(9, 10)]
    assert "device-idle" in findings(rows)
    assert "device-idle" not in findings(rows, extra={"unrecorded_copies": 3})


def test_time_between_passes_is_not_idle() -> None:
    rows = [kernel(0, 5, pass_id=0), kernel(1000, 1005, pass_id=1)]
    passes = [{"pass_id": i, "arm": "off", "warmup": False} for i in range(2)]
    assert findings(rows, passes, source="hprof") == {}


def test_warm_ups_are_left_out() -> None:
    rows = [kernel(0, 1, pass_id=0), kernel(100, 101, pass_id=0), kernel(200, 205, pass_id=1)]
    passes = [{"pass_id": 0, "arm": "off", "warmup": True}, {"pass_id": 1, "arm": "off", "warmup": False}]
    assert findings(rows, passes, source="hprof") == {}


def test_idle_is_the_one_of_the_tables_and_reaches_from_edge_to_edge_of_the_pass() -> None:
    """Lead-in and lead-out are idle; collectives, memsets and graph launches are not; host compute is, and is told."""
    rows = [kernel(2, 6), row("compute", 6, 7, detail="collective"), row("compute", 7, 8, detail="memset")]
    rows += [row("compute", 8, 9, detail="graph"), row("cpu_compute", 12, 16, "host")]
    rows = [one | {"pass_id": 0} for one in rows]
    passes = [{"pass_id": 0, "arm": "off", "warmup": False, "t_start": 0, "t_end": 20 * 10**6}]
    for source in ("nsys", "hprof"):
        idle = findings(rows, passes, source=source)["device-idle"]
        assert "idle for 13.0 ms of 20.0 ms (65.0 %), 4.00 ms of it while the host computed" in idle.evidence
        assert "2 gaps of 0.1 ms or more, the longest 11.0 ms" in idle.evidence


def test_a_device_that_only_waits_for_the_host_to_compute_is_no_finding() -> None:
    rows = [kernel(0, 5), row("cpu_compute", 5, 15, "host"), kernel(15, 20)]
    assert findings(rows) == {}


def test_on_one_clock_work_of_another_pass_hides_a_copy_too() -> None:
    """The copy that pass 1 issues runs beside the kernel that pass 0 issued, inside pass 1's window."""
    rows = [kernel(0, 19, pass_id=0), copy(10, 19, pass_id=1), kernel(19, 20, pass_id=1)]
    windows = [{"t_start": 0, "t_end": 10 * 10**6}, {"t_start": 10 * 10**6, "t_end": 20 * 10**6}]
    passes = [{"pass_id": i, "arm": "a", "warmup": i == 0} | window for i, window in enumerate(windows)]
    assert view(rows, passes).exposed(view(rows, passes).busy_h2d).sum() == 0


def test_copies_that_overlap_are_united() -> None:
    rows = [copy(0, 10, "7"), copy(5, 15, "7"), kernel(15, 25)]
    evidence = findings(rows)["copies-on-compute-stream"].evidence
    assert "at 33.3 GB/s" in evidence
    assert "15.0 ms of copies, 0 ns (0 %) hidden" in evidence


def test_a_stream_with_one_short_kernel_is_not_one_that_computes() -> None:
    rows = [*(copy(2 * i, 2 * i + 1) for i in range(5)), kernel(9.5, 9.502, "14")]
    assert "copies-on-compute-stream" not in findings(rows)


def test_activations_that_go_to_the_host_in_the_open() -> None:
    def offload(start_ms: float, stream: str) -> Row:
        return row("d2h", start_ms, start_ms + 2, stream, bytes=50 * MB, source_memory="device")

    in_line = [step for i in range(5) for step in (kernel(4 * i, 4 * i + 2), offload(4 * i + 2, "7"))]
    found = findings(in_line)["exposed-copies-to-host"]
    assert found.severity == "serious"
    assert found.evidence == (
        "GPU 0 of process 1, over the trace: 238 MiB D2H in 5 copies at 25.0 GB/s: 10.0 ms of their 10.0 ms were not "
        "hidden by compute."
    )
    assert "stream of its own" in found.advice
    beside = [kernel(0, 20), *(offload(4 * i + 2, "20") for i in range(4))]
    assert findings(beside) == {}
    assert "exposed-copies-to-host" not in findings(in_line, source="hprof")


def test_a_capture_without_events() -> None:
    assert findings([]) == {}


def test_the_native_off_arm_copies_in_line_by_design_and_on_is_silent(tmp_path: Path) -> None:
    found = {finding.rule: finding for finding in find(dense_off_on(tmp_path / "x"))}
    inline = found["copies-on-compute-stream"]
    assert inline.severity == "info"
    assert inline.evidence.startswith("Arm off, GPU 0")
    assert "by design" in inline.advice


def test_every_rule_says_what_it_looks_for() -> None:
    assert all(rule.__doc__ for rule in RULES)


_TIME = st.one_of(st.none(), st.integers(-(10**18), 10**18), st.integers(0, 1000))
_ROW = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["h2d", "d2h", "d2d", "compute", "wait", "sync", "api", "cpu_compute", None]),
        "t_start": _TIME,
        "t_end": _TIME,
        "bytes": st.one_of(st.none(), st.integers(-5, 2**62)),
        "stream": st.sampled_from(["7", "14", "copy", "[red]", None]),
        "process": st.sampled_from([1, 2, None]),
        "device": st.sampled_from([0, 1, None]),
        "pass_id": st.sampled_from([0, 1, 9, None]),
        "correlation_id": st.one_of(st.none(), st.integers(-1, 4)),
        "waits_for": st.one_of(st.none(), st.integers(-1, 4)),
        "name": st.sampled_from(["cudaMemcpy", "copy whole", None]),
        "detail": st.sampled_from(["uvm", "memset", "graph", "other", None]),
        "source_memory": st.sampled_from(["pinned", "pageable", None]),
    }
)
_PASSES: list[Row] = [{"pass_id": 0, "arm": "on", "warmup": False}, {"pass_id": 1, "arm": None, "warmup": None}]


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(_ROW, max_size=12))
def test_any_events_give_findings_and_no_error(rows: list[Row]) -> None:
    for finding in find_in(view(rows, _PASSES)):
        assert finding.severity in SEVERITIES
        assert finding.evidence.endswith((".", ")"))
        assert "nan" not in finding.evidence
        assert finding.advice.endswith(".")


def test_kernels_on_no_known_stream_put_no_copy_in_line() -> None:
    """They are not the copies' stream: nothing says whose they are."""
    rows = [copy(at, at + 2) for at in range(0, 20, 4)] + [
        kernel(at + 2, at + 4, stream=None) for at in range(0, 20, 4)
    ]
    assert "copies-on-compute-stream" not in findings(rows)
    beside = [row | {"stream": "14"} if row["kind"] == "compute" else row for row in rows]
    assert "copies-on-compute-stream" in findings(beside)
