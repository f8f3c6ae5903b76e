"""Rules about the recording, and what all findings have in common."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.findings import RULES, find, find_in
from profiler.findings.finding import SEVERITIES
from tests.profiler.findings.captures import Row, copy, findings, kernel, row, view
from tests.profiler.makers import dense_off_on


def test_cuda_graphs() -> None:
    rows = [kernel(0, 5), row("compute", 5, 8, detail="graph"), row("compute", 8, 10, detail="graph")]
    graphs = findings(rows)["cuda-graphs"]
    assert graphs.severity == "serious"
    assert "2 CUDA graph launches took 5.0 ms" in graphs.evidence
    assert "--cuda-graph-trace=node" in graphs.advice


def test_unified_memory() -> None:
    rows = [kernel(0, 10), copy(0, 2, "0", detail="uvm", source_memory=None)]
    uvm = findings(rows)
    assert set(uvm) == {"unified-memory"}
    assert "50.0 MB migrated to the device in 1 piece at 25.0 GB/s" in uvm["unified-memory"].evidence


def test_dropped_rows() -> None:
    dropped = findings([kernel(0, 1)], dropped={"kernel: no times": 1200, "copy: unknown copy kind": 3})
    assert dropped["dropped-events"].evidence == (
        "1,203 rows of the source left out: 1,200 kernel: no times; 3 copy: unknown copy kind."
    )


def test_lost_events() -> None:
    said = ["Not all CUDA events might have been collected."]
    lost = findings([kernel(0, 1)], extra={"profiler_errors": said})
    assert said[0] in lost["lost-events"].evidence
    assert findings([kernel(0, 1)], extra={"profiler_errors": "no list"}) == {}


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
