"""What the timeline's script computes, run by Node on the bytes that the server packs: statistics of a stretch, rows of
overlapping events, groups of lanes, the same layer in the other arm.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from dashboard.timeline.component import header, script
from dashboard.timeline.pack import PassToDraw, pack
from profiler.metrics.timeline import Timeline, load_timeline, timeline
from profiler.metrics.timeline_detail import ubatch_spans
from profiler.storage.writer import conform
from tests.profiler import makers

US: Final = 1000


def checked(sides: list[PassToDraw], folder: Path, name: str, *numbers: int) -> Any:
    """What the check of this name in timeline_checks.js gives."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node to run the timeline's script with")
    (folder / "packed").write_bytes(pack(sides, header("key", None)))
    checks = Path(__file__).with_name("timeline_checks.js").read_text(encoding="utf-8")
    (folder / "run.mjs").write_text(f"{script()}\n{checks}", encoding="utf-8")
    command = [node, str(folder / "run.mjs"), str(folder / "packed"), name, *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return orjson.loads(done.stdout)


@pytest.fixture
def off_and_on(tmp_path: Path) -> list[PassToDraw]:
    capture = makers.dense_off_on(tmp_path / "c", n_pairs=1)
    sides = []
    for arm in ("off", "on"):
        row = capture.passes.query(f"arm == '{arm}' and not warmup").iloc[0]
        line = load_timeline(capture, [int(row["pass_id"])], origin_ns=int(row["t_start"]))
        spans = ubatch_spans(line, capture.table("ubatches", pass_ids=[int(row["pass_id"])]))
        sides.append(PassToDraw(arm, line, spans, first_token_ns=int(row["ttft_ns"])))
    return sides


def drawn(rows: Sequence[tuple[str, int | None, int | None, int, int]]) -> Timeline:
    """Rows of kind, process, device, start, end."""
    names = ("kind", "process", "device", "t_start", "t_end")
    return timeline(conform("events", dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))))


def test_statistics_of_whole_passes_are_those_of_the_captures_figures(
    off_and_on: list[PassToDraw], tmp_path: Path
) -> None:
    off, on = (checked(off_and_on, tmp_path, "statistics", number, -(10**9), 10**9) for number in (0, 1))
    assert off["copy H2D, busy"] == off["copy H2D, exposed"] == makers.N_COPIES * makers.COPY_US * US
    assert (on["copy H2D, hidden"], on["copy H2D, exposed"]) == (makers.ON_HIDDEN_US * US, 300 * US)
    for told, wall_us in ((off, makers.OFF_WALL_US), (on, makers.ON_WALL_US)):
        assert told["copy H2D, events"] == told["compute, events"] == makers.N_COPIES
        assert told["copy H2D, bytes"] == makers.N_COPIES * makers.COPY_BYTES
        assert told["copy H2D, speed while busy"] == pytest.approx(makers.COPY_BYTES / (makers.COPY_US * US))
        assert told["idle"] == wall_us * US - told["copy H2D, exposed"] - told["compute, busy"]


def test_statistics_of_a_stretch_count_parts_of_events(off_and_on: list[PassToDraw], tmp_path: Path) -> None:
    # `off` copies for 100 us, then computes for 60; the stretch has the second half of one and the first of the other.
    half = checked(off_and_on, tmp_path, "statistics", 0, 50 * US, 130 * US)
    assert (half["copy H2D, events"], half["compute, events"]) == (1, 1)
    assert (half["copy H2D, busy"], half["copy H2D, bytes"]) == (50 * US, makers.COPY_BYTES / 2)
    assert (half["compute, busy"], half["idle"]) == (30 * US, 0)


def test_what_overlaps_counts_once_and_stands_in_rows(tmp_path: Path) -> None:
    computing = [("compute", 1, 0, *span) for span in ((0, 100), (50, 150), (120, 130))]
    side = PassToDraw("one", drawn([*computing, ("h2d", 1, 0, 0, 10)]))
    assert checked([side], tmp_path, "statistics", 0, 0, 200)["compute, busy"] == 150
    boxes = [{"top": 10, "tall": 19}, {"top": 30, "tall": 19}]
    assert checked([side], tmp_path, "rows") == {"rows": [0, 1, 0], "count": 2, "boxes": boxes}


def test_statistics_of_several_devices_are_apart(tmp_path: Path) -> None:
    rows = [("h2d", 1, 1, 0, 10), ("compute", 1, 0, 0, 30), ("cpu_compute", 1, None, 0, 5)]
    told = checked([PassToDraw("two", drawn(rows))], tmp_path, "statistics", 0, 0, 40)
    assert (told["GPU 1 · copy H2D, exposed"], told["GPU 0 · compute, busy"]) == (10, 30)
    assert (told["GPU 1 · idle"], told["GPU 0 · idle"]) == (20, 0), "until the last event, at 30"


def test_lanes_are_grouped_folded_pinned_and_fit_the_room(tmp_path: Path) -> None:
    rows = [("h2d", 1, 1, 0, 10), ("compute", 1, 1, 0, 10), ("h2d", 1, 0, 0, 10), ("api", 1, None, 0, 10)]
    found = checked([PassToDraw("one", drawn(rows))], tmp_path, "layouts")
    assert found["groups"] == ["", "GPU 0", "GPU 1", "host"]
    assert found["lanes"] == ["GPU 0 · copy H2D", "GPU 1 · copy H2D", "GPU 1 · compute", "host calls"]
    assert found["folded"] == ["GPU 0 · copy H2D", "host calls"]
    assert found["side"] == []
    assert found["pinned"] == ["GPU 1 · copy H2D", True]
    assert found["small"] == [150, True, True], "as high as the room, and scrolled to the last lane"


def test_the_same_layer_in_the_other_arm(off_and_on: list[PassToDraw], tmp_path: Path) -> None:
    found = checked(off_and_on, tmp_path, "counterparts")
    assert len(found) >= 2 * makers.N_COPIES
    assert all(one == {"back": True, "side": 1, "same": True} for one in found)


def test_ends_of_b_are_told_against_a(off_and_on: list[PassToDraw], tmp_path: Path) -> None:
    found = checked(off_and_on, tmp_path, "ends")
    assert found["first"] == "180 µs earlier"
    assert found["ubatch"].startswith("ubatch 0 · 4 tokens · ends ")
    assert found["ubatch"].endswith(" earlier")


def test_fit_and_strip_show_the_same_stretch(off_and_on: list[PassToDraw], tmp_path: Path) -> None:
    shown, strip = checked(off_and_on, tmp_path, "fit")
    assert shown == pytest.approx(strip)
