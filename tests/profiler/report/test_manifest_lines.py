"""Lines that the manifest alone tells: device memory that programs allocated."""

from __future__ import annotations

from profiler.manifest import Manifest
from profiler.report.manifest_lines import allocation_notes


def test_a_line_for_each_process_and_device() -> None:
    rows = [{"process": 7, "device": 0, "peak_bytes": 3_000_000_000}, {"process": 7, "device": 1, "peak_bytes": 5}]
    assert allocation_notes(Manifest(extra={"device_memory": rows})) == [
        "Process 7, device 0: at most 2.79 GiB of its memory allocated while recorded.",
        "Process 7, device 1: at most 5 B of its memory allocated while recorded.",
    ]


def test_what_is_not_said_or_no_number_is_left_out() -> None:
    assert allocation_notes(Manifest()) == []
    odd = [{"process": 7, "device": None, "peak_bytes": 1}, {"process": "\x1b[31m", "device": 0, "peak_bytes": 1}, 5]
    assert allocation_notes(Manifest(extra={"device_memory": odd})) == []
    assert allocation_notes(Manifest(extra={"device_memory": {"process": 7}})) == []
