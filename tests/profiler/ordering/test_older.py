"""Ordering records of another time, which lack what an order is proved by: refused, neither clean nor at fault."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from benchmarks.older_captures import without_column
from executor.errors import HprofError
from hprof import main
from profiler.capture import Capture
from profiler.ordering.check import check_capture

RUN = "run --device sim --layers 1 -p 32 -n 1 -ub 32 -r 1 --arms off,on --record-ordering"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ordering") / "run"
    assert main([*shlex.split(RUN), "-o", str(path)]) == 0
    return path


def test_all_of_it_is_clean(recorded: Path) -> None:
    assert check_capture(Capture.open(recorded)).is_clean


@pytest.mark.parametrize("column", ["pass_id", "sequence", "stream", "op", "event", "reads", "writes"])
def test_a_column_that_is_not_there(recorded: Path, column: str, tmp_path: Path) -> None:
    shutil.copytree(recorded, tmp_path / "old")
    without_column("ordering", column)(tmp_path / "old")
    with pytest.raises(HprofError, match=f"lack `{column}`, without which no order"):
        check_capture(Capture.open(tmp_path / "old"))
