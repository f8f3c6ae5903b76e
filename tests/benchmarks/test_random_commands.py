"""Random command lines are drawn for every command, and one that ends badly is called wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.random_commands import LineDrawer, fault_of
from hprof.command_line import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_lines_are_drawn_for_every_command(name: str, tmp_path: Path) -> None:
    good = tmp_path / "good.json"
    good.write_text("{}")
    files = {kind: [good] for kind in ("capture", "trace", "model", "probe", "routing")}
    lines = [LineDrawer(random.Random(seed), files, tmp_path).line(name) for seed in range(20)]
    assert all(line.words[0] == name and "\0" not in "".join(line.words) for line in lines)
    assert len({line.words for line in lines}) > 5


@pytest.mark.parametrize(
    ("command", "code", "err", "said"),
    [
        ("report", 0, "", None),
        ("report", 2, "hprof: no", None),
        ("report", 2, "", "exit code 2 without a sentence"),
        ("report", 255, "Aborted", "exit code 255"),
        ("report", None, "", "hung"),
        ("report", 1, "Traceback (most recent call last)", "said 'Traceback'"),
        ("report", 2, "hprof: \x1b[31m", r"printed ['\x1b']"),
        ("record", 7, "", None),
    ],
)
def test_bad_ends_are_named(command: str, code: int | None, err: str, said: str | None) -> None:
    assert fault_of(command, code, 0, "", err) == said
    assert fault_of("list", 0, 4 << 30, "", "") == "4.0 GiB"
