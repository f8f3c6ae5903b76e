"""Two GPUs: what each did and held, in the report and its JSON, and the same tokens as on one."""

from __future__ import annotations

import io
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from executor.devices.factory import DeviceOptions
from profiler.capture import Capture
from profiler.planning.request import GridPoint, RunRequest
from profiler.report.blocks import by_device_table
from profiler.report.build import build_report
from profiler.report.markdown import render_markdown
from profiler.report.terminal import print_report
from tests.profiler.runs import make_capture

ARMS = ("off", "on", "gated")


def _run(path: Path, kind: str, n_devices: int) -> Capture:
    device = DeviceOptions(kind, n_devices=n_devices, n_threads=1, link_gb_s=1.0)  # type: ignore[arg-type]
    request = RunRequest(
        cells=(GridPoint(64, n_gen=3, n_ubatch=32, n_depth=0),),
        device=device,
        model="tiny-moe",
        layers=4,
        arms=ARMS,
        repetitions=1,
    )
    return make_capture(path, request)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return _run(tmp_path_factory.mktemp("two") / "capture", "cpu", 2)


def test_the_same_tokens_and_logits_as_on_one(tmp_path: Path, on_two: Capture) -> None:
    one = _run(tmp_path / "capture", "cpu", 1).passes
    both = one.merge(on_two.passes, on=["arm", "repetition", "warmup"], suffixes=("_one", "_two"))
    assert len(both) >= len(ARMS) * 2
    assert both["tokens_one"].map(tuple).tolist() == both["tokens_two"].map(tuple).tolist()
    assert both["logits_digest_one"].tolist() == both["logits_digest_two"].tolist()


def test_both_links_are_busy_and_the_parts_make_the_whole(on_two: Capture) -> None:
    (cell,) = build_report(on_two).cells
    for name in ARMS:
        arm = cell.arms[name]
        copied, busy = arm.figures["pass"]["bytes_h2d"], arm.figures["pass"]["busy_copy_ns"]
        assert copied is not None
        assert busy is not None
        assert [part.device for part in arm.by_device] == [0, 1]
        assert sum(part.bytes_h2d or 0 for part in arm.by_device) == copied.median
        assert sum(part.busy_copy_ns for part in arm.by_device) == busy.median
        assert all(part.busy_copy_ns > 0 and part.busy_compute_ns > 0 for part in arm.by_device)
        assert all(0 <= part.hidden_copy_ns <= part.busy_copy_ns for part in arm.by_device)


def test_the_report_shows_them(on_two: Capture) -> None:
    report = build_report(on_two)
    out = Console(file=io.StringIO(), width=120)
    print_report(report, out)
    assert isinstance(out.file, io.StringIO)
    assert "By device, in one pass" in out.file.getvalue()
    assert "## By device, in one pass" in render_markdown(report)
    parts = report.to_json()["cells"][0]["arms"]["on"]["by_device"]
    assert [part["device"] for part in parts] == [0, 1]


def test_it_says_what_each_arm_holds_where(on_two: Capture) -> None:
    report = build_report(on_two)
    for name in ARMS:
        arm, memory = report.cells[0].arms[name], report.residency[name]
        held = [part.vram_held_bytes for part in arm.by_device]
        assert all(held)
        assert sum(filter(None, held)) == memory.resident_bytes + memory.slots_bytes + memory.bank_bytes
    on, off = ([part.vram_held_bytes or 0 for part in report.cells[0].arms[name].by_device] for name in ("on", "off"))
    assert all(two_slots > one_slot for two_slots, one_slot in zip(on, off, strict=True))
    parts = report.to_json()["cells"][0]["arms"]["on"]["by_device"]
    assert [part["vram_held_bytes"] for part in parts] == on


def test_a_capture_that_does_not_say_it_by_device_has_none(on_two: Capture) -> None:
    older = copy(on_two)
    arms = [replace(arm, options=_without_devices(arm.options)) for arm in on_two.manifest.arms]
    older.manifest = on_two.manifest.with_changes(arms=arms)
    report = build_report(older)
    assert {part.vram_held_bytes for arm in report.cells[0].arms.values() for part in arm.by_device} == {None}
    (table,) = by_device_table(report.cells[0])
    assert table.columns[-1] == "VRAM held"
    assert {row[-1] for row in table.rows} == {"–"}


def _without_devices(options: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in options["effective"].items() if key != "by_device"}
    return options | {"effective": kept}


def test_one_device_needs_no_such_table(tmp_path: Path) -> None:
    report = build_report(_run(tmp_path / "capture", "sim", 1))
    assert all(arm.by_device == () for arm in report.cells[0].arms.values())
    assert "By device" not in render_markdown(report)
