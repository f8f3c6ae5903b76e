"""Each fault that `--inject` plants: the arm that shows it, what the check says, and how logits come to differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import pytest
import torch

from executor.devices.base import CopyRange, Device, StreamName, Work
from executor.devices.cpu import CpuDevice
from executor.policies.base import PolicyOptions
from profiler.ordering.check import CheckResult
from tests.executor.engine_runs import open_session, run_pass
from tests.profiler.ordering.records import check

READ, REFILL, OVERWRITE = "read before its write", "write before its reader", "write before a write"
WRONG, UNDER = "wrong bytes", "overwritten under its reader"
STEP, COPY, HOST, THREAD = "compute", "copy", "host", "thread"
N_PASSES: Final = {"cpu": 2, "cuda": 3}  # on cuda a step is run, then recorded, then replayed
PAUSES_S: Final = (0.02, 0.1, 0.5, 0.5, 0.5, 0.5)
"""How long a slow stream pauses: the first that shows a fault; on a busy machine the others take their time too, and of
two that write the same bytes now one is the last and now the other."""
_CYCLES_PER_S: Final = 1.7e9


@dataclass(frozen=True, slots=True)
class Shown:
    """How one fault shows."""

    arm: str
    kinds: set[tuple[str, str]]
    """What is found, and on which stream the second operation is."""
    because: str
    """A part of why, in words."""
    delayed: StreamName | None = "copy"
    """The stream that has to be slow for the fault to change bits; None: it does on any."""
    on_cuda: set[tuple[str, str]] = field(default_factory=set)
    """`kinds` on cuda, where they differ."""
    model: str = "tiny-moe"


SHOWN: Final = {
    "drop-wait": Shown("on", {(READ, STEP)}, "stream compute waits for nothing of stream copy before"),
    "drop-refill-wait": Shown(  # of FFNs: outside bf16, CUDA's grouped products of experts block the issuing thread
        "on",
        {(REFILL, COPY)},
        "stream copy waits for nothing of stream compute before",
        "compute",
        model="tiny-dense",
    ),
    "late-record": Shown("on", {(READ, STEP)}, "which nobody has recorded by then"),
    "stale-generation": Shown("on", {(READ, STEP)}, "generation 1, recorded as"),
    "wrong-slot": Shown("on", {(WRONG, STEP), (UNDER, STEP)}, "where the second relies on", None),
    "refill-pinned": Shown("on", {(REFILL, THREAD)}, "the issuing thread waits for nothing of stream copy"),
    "overlapping-views": Shown("on", {(UNDER, STEP)}, "where the second relies on", "compute"),
    "free-in-flight": Shown(
        "on",
        {(OVERWRITE, HOST), (OVERWRITE, COPY), (UNDER, STEP)},
        "waits for nothing of stream copy",
        "compute",
        on_cuda={(OVERWRITE, STEP), (WRONG, STEP)},
    ),
    "prefetch-bank": Shown("cache", {(READ, STEP)}, "stream compute waits for nothing of stream copy before"),
    "prefetch-uncomputed": Shown(
        "cpu",
        {(REFILL, HOST), (READ, STEP), (REFILL, STEP)},
        "the last event that stream host waits for there is",
        "host",
    ),
    "swallow-error": Shown("on", {(WRONG, STEP)}, "the last write in order carries another tag", None),
}
"""Faults that change bits."""
SLOW: Final = {"pageable-source", "late-issue"}
"""Faults that cost time alone."""


@dataclass(frozen=True, slots=True)
class FaultyRun:
    """Some passes: the last one's logits, float32 (n_logits, vocab), and what the check finds in all."""

    logits: torch.Tensor
    found: CheckResult

    @property
    def kinds(self) -> set[tuple[str, str]]:
        """As `Shown.kinds`."""
        return {(one.kind, one.second.stream) for one in self.found.violations}


def run_with(
    fault: str | None,
    arm: str,
    kind: Literal["cpu", "cuda"],
    delayed: StreamName | None,
    monkeypatch: pytest.MonkeyPatch,
    pause_s: float = PAUSES_S[0],
    model: str = "tiny-moe",
) -> FaultyRun:
    """Run with one stream slowed down, so that what does not wait for it comes too early."""
    policy = PolicyOptions(cache_bytes=1 << 20)
    options: dict[str, Any] = {"kind": kind, "policy": policy, "layers": 4}
    options["synthetic_routing"] = model == "tiny-moe"
    with open_session(model, [arm], record_ordering=True, inject=fault, **options) as session:
        n_gen = 2 if arm == "cache" else 0
        with monkeypatch.context() as patched:
            if delayed is not None:
                slow_down(type(innermost(session.devices[0])), delayed, pause_s, patched)
            passes = [run_pass(session, arm, 32, n_gen, 32, repetition=i) for i in range(N_PASSES[kind])]
    logits = passes[-1][1]
    assert logits is not None
    return FaultyRun(logits.float().cpu(), check(*(result.ordering for result, _ in passes)))


def run_until_it_shows(
    fault: str, clean: FaultyRun, kind: Literal["cpu", "cuda"], monkeypatch: pytest.MonkeyPatch
) -> FaultyRun:
    """Run with longer and longer pauses until the logits are no more the clean run's."""
    shown = SHOWN[fault]
    for pause_s in PAUSES_S:
        faulty = run_with(fault, shown.arm, kind, shown.delayed, monkeypatch, pause_s, shown.model)
        if not torch.equal(clean.logits, faulty.logits):
            break
    return faulty


def innermost(device: Device) -> Device:
    """The device inside all wrappers."""
    while hasattr(device, "_inner"):
        device = device._inner
    return device


def slow_down(of: type[Device], stream: StreamName, pause_s: float, patched: pytest.MonkeyPatch) -> None:
    """From now on each copy (or launch) on `stream` begins with a pause, which no recorder sees."""
    launch, copy_in = of.launch, of.copy_in
    pause: Callable[[], None] = partial(time.sleep, pause_s)
    if of is not CpuDevice and stream != "host":  # on cuda `host` is the issuing thread
        pause = partial(torch.cuda._sleep, round(pause_s * _CYCLES_PER_S))

    def slow_launch(device: Device, on: StreamName, *args: Any, **options: Any) -> None:
        if on == stream:
            launch(device, on, pause, Work())
        launch(device, on, *args, **options)

    def slow_copy(device: Device, on: StreamName, ranges: Sequence[CopyRange]) -> None:
        if on == stream:
            launch(device, on, pause, Work())
        copy_in(device, on, ranges)

    patched.setattr(of, "launch", slow_launch)
    patched.setattr(of, "copy_in", slow_copy)
