"""What to set follows the figure that the answer judges."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.capture import Capture
from profiler.manifest import ManifestArm
from profiler.report.build import build_report
from profiler.storage.writer import PassKey, new_capture
from tests.profiler import makers
from tests.profiler.report.answers import joined


@pytest.mark.parametrize(
    ("on", "other", "n_boots", "told"),
    [
        ((20, 120), (15, 50), 6, "Set: on, by t/s."),  # wall time holds the start, which is no matter of t/s
        ((9, 50), (8, 120), 6, "Set: off, for no arm was shown to beat it in t/s."),
        ((20, 120), (15, 50), 2, "Set, if it holds: on, by t/s."),
        ((9, 50), (8, 120), 2, "Set, if it holds: off, by t/s."),
    ],
)
def test_what_to_set_follows_what_the_programs_printed(
    tmp_path: Path, on: tuple[float, float], other: tuple[float, float], n_boots: int, told: str
) -> None:
    speeds, walls = {"off": 10, "on": on[0], "other": other[0]}, {"off": 100, "on": on[1], "other": other[1]}
    assert told in joined(build_report(makers.printed_by_commands(tmp_path / "c", speeds, walls, n_boots)))


def test_what_to_set_goes_by_wall_time_where_nothing_else_is_judged(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c", source="python", arms=[ManifestArm("off"), ManifestArm("on")])
    for order in range(12):
        took, name = (100, "off") if order % 2 == 0 else (50, "on")
        key = PassKey(name, repetition=order // 2, order=order, boot=0)
        writer.add_pass_row(order, key, t_start=order * 1000, t_end=order * 1000 + took)
    writer.finish()
    told = joined(build_report(Capture.open(tmp_path / "c")))
    assert "on is 2.00 x as fast as off" in told
    assert "Set: on." in told
