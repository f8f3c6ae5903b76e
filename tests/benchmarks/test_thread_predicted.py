"""The thread, predicted: what two of its figures say of the others, and the napkin's arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.thread_predicted import ThreadModel, crossover, main, napkin, published
from tests.support import ROOT


@pytest.mark.parametrize(("ubatch", "told"), [(512, 20.2), (1024, 38.5), (2048, 70.4), (4096, 119.8)])
def test_the_napkin_is_worked_out(ubatch: int, told: float) -> None:
    assert napkin(ubatch) == pytest.approx(told, rel=0.01)


def test_two_figures_tell_the_others() -> None:
    model = ThreadModel()
    machine = model.fitted()
    rows = published(model, machine)
    for row in rows:
        if row.is_fitted:
            assert row.predicted == pytest.approx(row.measured, rel=0.01)
    assert np.median([abs(row.predicted / row.measured - 1) for row in rows if not row.is_fitted]) < 0.3
    low, high = crossover(model, machine)
    assert low >= 128
    assert high <= 1024


def test_the_page_is_what_its_command_writes(tmp_path: Path) -> None:
    """It went stale when `sim` changed, and nothing noticed."""
    main([str(tmp_path / "page.md")], standalone_mode=False)
    page = (ROOT / "docs" / "thread-predicted.md").read_text(encoding="utf-8")
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == page
