"""On CUDA each fault that `--inject` plants is found as what it is, and is real: behind a delay, logits differ."""

from __future__ import annotations

import pytest
import torch

from tests.profiler.ordering.planted import SHOWN, SLOW, FaultyRun, run_until_it_shows, run_with

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]


def told(name: str, run: FaultyRun, clean: FaultyRun) -> str:
    """What was seen, for the log of a machine that one cannot look at twice."""
    n_differing = int((run.logits != clean.logits).sum())
    first = f"; the first: {run.found.violations[0]}" if run.found.violations else ""
    return (
        f"{name}: {n_differing:,} of {run.logits.numel():,} logits differ; {run.found.n_races} races, "
        f"{run.found.n_wrong} reads of wrong bytes, {sorted(run.kinds)}{first}"
    )


@pytest.mark.parametrize("fault", SHOWN)
def test_a_fault_is_found_and_real(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = SHOWN[fault]
    clean = run_with(None, shown.arm, "cuda", shown.delayed, monkeypatch, model=shown.model)
    faulty = run_until_it_shows(fault, clean, "cuda", monkeypatch)
    print(told(fault, faulty, clean))
    assert clean.found.is_clean, clean.found.violations
    assert torch.isfinite(clean.logits).all()
    assert faulty.kinds
    assert faulty.kinds <= (shown.on_cuda or shown.kinds)  # a pass this short may not show all
    assert not torch.equal(clean.logits, faulty.logits)


@pytest.mark.parametrize("delayed", ["copy", "compute"])
def test_a_delay_alone_changes_nothing(delayed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run_with(None, "on", "cuda", None, monkeypatch)
    late = run_with(None, "on", "cuda", delayed, monkeypatch)  # type: ignore[arg-type]
    print(told(f"delay on {delayed}", late, plain))
    assert torch.equal(plain.logits, late.logits)


@pytest.mark.parametrize("fault", sorted(SLOW))
def test_what_costs_time_alone_changes_no_bits(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clean, slow = (run_with(name, "on", "cuda", None, monkeypatch) for name in (None, fault))
    print(told(fault, slow, clean))
    assert slow.found.is_clean, slow.found.violations
    assert torch.equal(clean.logits, slow.logits)
