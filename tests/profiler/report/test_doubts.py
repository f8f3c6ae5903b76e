"""What speaks against figures is said: windows cut by the host in older imports, and values that lie far off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hprof.opened import OpenedCapture
from profiler.capture import Capture
from profiler.importers import import_files
from profiler.manifest import Manifest, ManifestArm
from profiler.report.build import build_report
from profiler.report.doubts import old_steps_warnings
from profiler.schema import PASSES
from profiler.storage.writer import PassKey, new_capture
from tests.profiler.importers.kineto.traces import annotation, call, h2d, kernel, write

_MS = 10**6


def _passes(*windows: tuple[int | None, int | None], n_ubatch: int | None = None) -> pa.Table:
    rows = [
        {"pass_id": i, "arm": "trace", "n_ubatch": n_ubatch, "t_start": start, "t_end": end}
        for i, (start, end) in enumerate(windows)
    ]
    return pa.Table.from_pylist(rows, schema=PASSES)


_OVERLAPPING = _passes((0, 40 * _MS), (20 * _MS, 60 * _MS), (40 * _MS, 80 * _MS), (80 * _MS, 90 * _MS))


def test_overlapping_steps_of_an_old_import_are_to_be_imported_again() -> None:
    (warning,) = old_steps_warnings(Manifest(source="kineto"), _OVERLAPPING)
    assert warning.startswith("2 of 4 profiler steps end after the next one begins")
    assert warning.endswith("import the trace again with this version.")


@pytest.mark.parametrize(
    ("manifest", "passes"),
    [
        (Manifest(source="kineto", extra={"steps_are_cut_on_device": True}), _OVERLAPPING),
        (Manifest(source="kineto", extra={"files": [{"steps_are_cut_on_device": True}]}), _OVERLAPPING),
        (Manifest(source="hprof"), _OVERLAPPING),
        (Manifest(source="kineto"), _passes((0, 40), (20, 60), n_ubatch=512)),  # hprof's own ranges
        (Manifest(source="kineto"), _passes((0, 20), (None, None), (20, 40))),
        (Manifest(source="kineto"), PASSES.empty_table()),
    ],
)
def test_other_passes_are_not(manifest: Manifest, passes: pa.Table) -> None:
    assert old_steps_warnings(manifest, passes) == []


def test_ranks_whose_steps_overlap_now_are_no_old_ones(tmp_path: Path) -> None:
    """The same capture without what this version notes of its steps is an old one, and the report says so."""
    events = []
    for rank in range(2):
        host, device = {"pid": f"[TP0{rank}] 4000"}, {"pid": f"[TP0{rank}] 0"}
        for step in range(3):
            t, copy, launch = step * 10_000 + rank * 2_000, 2 * step + 1, 2 * step + 2
            events += [
                annotation(f"ProfilerStep#{step}", t, 9_000) | host,
                call(t + 10, 5, copy) | host,
                call(t + 20, 5, launch) | host,
                h2d(t + 100, 4_000, correlation=copy) | device,
                kernel(t + 4_100, 5_900, correlation=launch) | device,
            ]
    import_files([write(tmp_path / "t.json", events)], tmp_path / "c")
    assert not any("older version" in text for text in build_report(OpenedCapture.open(tmp_path / "c")).warnings)
    manifest = tmp_path / "c" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"steps_are_cut_on_device": true', '"was": true'))
    assert any("older version" in text for text in build_report(OpenedCapture.open(tmp_path / "c")).warnings)


STEADY = [100, 101, 99, 100, 102, 98]


def warned(path: Path, source: str, boots: Sequence[Sequence[int]], **fields: Any) -> list[str]:
    """The warnings about outliers of a capture with one arm, a list of prefill times a boot."""
    writer = new_capture(path, source=source, arms=[ManifestArm("a")], **fields)
    order = 0
    for boot, times in enumerate(boots):
        for repetition, ns in enumerate(times):
            key = PassKey("a", 64, 0, 64, 0, repetition, order, boot)
            writer.add_pass_row(order, key, prefill_ns=ns * 1000, t_start=0, t_end=ns * 1000)
            order += 1
    writer.finish()
    return [text for text in build_report(Capture.open(path)).warnings if text.startswith("Outliers")]


def test_steady_values_are_no_outliers(tmp_path: Path) -> None:
    assert warned(tmp_path / "c", "hprof", [STEADY]) == []


def test_the_share_is_named_with_its_arm_and_figure(tmp_path: Path) -> None:
    [said] = warned(tmp_path / "c", "hprof", [[*STEADY, 900, 900]])
    assert "prefill of a 25.0 %" in said
    assert "wall of a 25.0 %" in said
    assert said.endswith("if other programs were running, close them and repeat.")


def test_less_than_a_twentieth_moves_no_median_and_is_not_told(tmp_path: Path) -> None:
    assert warned(tmp_path / "c", "hprof", [[*STEADY * 4, 900]]) == []


def test_of_fewer_values_than_a_verdict_needs_deviations_are_chance(tmp_path: Path) -> None:
    assert warned(tmp_path / "c", "hprof", [[100, 101, 99, 102, 900]]) == []


@pytest.mark.parametrize(
    ("source", "boots", "cause"),
    [
        ("llama-bench", [[900, *STEADY]] * 2, "most are the first repetition of a process"),
        ("llama-bench", [[*STEADY, 900]] * 2, "if other programs were running"),
        ("hprof", [[900, *STEADY]] * 2, "if other programs were running"),
    ],
)
def test_slow_first_repetitions_are_known_of_llama_bench_alone(
    tmp_path: Path, source: str, boots: list[list[int]], cause: str
) -> None:
    [said] = warned(tmp_path / "c", source, boots)
    assert cause in said


def test_no_other_program_disturbs_what_nobody_timed(tmp_path: Path) -> None:
    [said] = warned(tmp_path / "c", "hprof", [[*STEADY, 900, 900]], machine={"device": "sim"})
    assert "other programs" not in said
    assert "nothing was timed" in said
