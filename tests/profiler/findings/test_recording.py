"""Rules about the recording: what it leaves out or cannot tell apart."""

from __future__ import annotations

from tests.profiler.findings.captures import copy, findings, kernel, row


def test_cuda_graphs() -> None:
    rows = [kernel(0, 5), row("compute", 5, 8, detail="graph"), row("compute", 8, 10, detail="graph")]
    graphs = findings(rows)["cuda-graphs"]
    assert graphs.severity == "serious"
    assert "2 CUDA graph launches took 5.00 ms" in graphs.evidence
    assert "--cuda-graph-trace=node" in graphs.advice


def test_unified_memory() -> None:
    rows = [kernel(0, 10), copy(0, 2, "0", detail="uvm", source_memory=None)]
    uvm = findings(rows)
    assert set(uvm) == {"unified-memory"}
    assert "47.7 MiB migrated to the device in 1 piece at 25.0 GB/s" in uvm["unified-memory"].evidence


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
