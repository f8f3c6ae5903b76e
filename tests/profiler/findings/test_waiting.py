"""Rules about standing still: the copy engine, prefetched copies, the device."""

from __future__ import annotations

from typing import Any

from tests.profiler.findings.captures import Row, copy, findings, kernel, row


def test_a_copy_engine_that_idles_while_copies_are_exposed() -> None:
    # 2 ms of copy, 2 ms idle under compute, five times: 8 ms idle, 10 ms exposed
    rows = [step for i in range(5) for step in (copy(4 * i, 4 * i + 2), kernel(4 * i + 2, 4 * i + 4))]
    idle = findings(rows)["idle-copy-engine"]
    assert idle.severity == "serious"
    assert "idle for 8.0 ms between the first and last copy that ran ahead, while 10.0 ms of their" in idle.evidence
    assert "up to 8.0 ms" in idle.advice


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
    assert "10.0 ms too late in all" in late.evidence
    assert late.evidence.startswith("Arm on, GPU 0 of process 1")


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
    assert "for 2.0 ms of 10.0 ms (20.5 %); 1 gap of 0.1 ms or more, the longest 2.0 ms" in idle.evidence


def test_many_short_gaps() -> None:
    idle = findings([kernel(at, at + 0.45) for at in (0, 0.5, 1, 1.5)])["device-idle"]
    assert "no gap is longer than 50.0 us" in idle.evidence


def test_time_between_passes_is_not_idle() -> None:
    rows = [kernel(0, 5, pass_id=0), kernel(1000, 1005, pass_id=1)]
    passes = [{"pass_id": i, "arm": "off", "warmup": False} for i in range(2)]
    assert findings(rows, passes, source="hprof") == {}


def test_warm_ups_are_left_out() -> None:
    rows = [kernel(0, 1, pass_id=0), kernel(100, 101, pass_id=0), kernel(200, 205, pass_id=1)]
    passes = [{"pass_id": 0, "arm": "off", "warmup": True}, {"pass_id": 1, "arm": "off", "warmup": False}]
    assert findings(rows, passes, source="hprof") == {}
