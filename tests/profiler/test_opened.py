"""What `hprof.open` gives, as the README and docs/metrics.md promise it."""

from __future__ import annotations

from pathlib import Path

import pytest

import hprof
from profiler.capture import Capture
from tests.profiler import makers


@pytest.fixture
def dense(tmp_path: Path) -> Capture:
    return makers.dense_off_on(tmp_path / "dense", n_pairs=2)


def test_open_by_the_public_name(dense: Capture) -> None:
    opened = hprof.open(dense.path)
    assert opened.name == "dense"
    assert opened.passes["arm"].tolist() == ["off", "on", "off", "on", "on", "off"]
    assert opened.warnings == []
    assert opened.report().baseline == "off"


def test_metrics_come_as_frames(dense: Capture) -> None:
    opened = hprof.open(Path(dense.path))
    passes = opened.figures()
    assert passes.loc[passes["arm"] == "on", "hidden_copy_ns"].tolist() == [300_000.0] * 3
    assert opened.figures("decode")["overlap_efficiency"].tolist() == [0, 1, 0, 1, 1, 0]
    assert len(opened.figures("ubatch")) == 6 * 3
    assert opened.figures("layer")["compute_ns"].unique().tolist() == [60_000]
