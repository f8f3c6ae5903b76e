"""What steps and copies cost: the seam between the timeline, which knows no rates, and whoever knows them.

`Costs` is implemented by `RateCosts` (the rates of one machine, as the `sim` device has them) and by
`profiler.predicting.fitted.FittedCosts` (what captures showed).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch

from executor.arrays import Flags, Floats
from executor.devices.sim import SimMachine
from executor.passes import Phase
from profiler.predicting.layout import Step, step_work

CopyWay = Literal["inline", "ahead", "divided"]
"""On the stream that computes, on one of their own, or on the former while the CPU multiplies with other experts."""
Setting = Literal["alone", "inline", "copies", "host", "divided"]
"""What goes on beside the steps of a phase: nothing; between a token's, copies that the host decides on; copies on a
stream of their own; trips to the CPU; or the CPU's products with some experts while others are copied, which share the
memory's speed."""


@dataclass(frozen=True, slots=True)
class Points:
    """Ubatches to be priced, an element each: `n_tokens` (points,), and `n_past` (points,) positions before them.

    `n_outputs` (points,) is how many of their last tokens' logits are wanted; None: of all.
    """

    n_tokens: Floats
    n_past: Floats
    phase: Phase = "prefill"
    setting: Setting = "alone"
    n_outputs: Floats | None = None

    def outputs(self) -> Points:
        """Those whose logits are wanted, as ubatches of their own; of none, where none are."""
        if self.n_outputs is None:
            return self
        return Points(self.n_outputs, self.n_past + self.n_tokens - self.n_outputs, self.phase, self.setting)

    def seen(self, window: int | None) -> Floats:
        """(points,): how many positions a token sees, on average."""
        seen = self.n_past + (self.n_tokens + 1) / 2
        return seen if window is None else np.minimum(seen, window)


class Costs(Protocol):
    """Times in ns; arrays have one element a point."""

    def step_ns(self, step: Step, points: Points, distinct: Floats) -> Floats:
        """A step, with what passes between the step before it and itself; `distinct` experts are in use."""

    @property
    def runs_by_tensor(self) -> bool:
        """Whether each product runs where its own weights are, and not a whole step where the arm has it."""

    def copy_ns(self, n_bytes: Floats, n_copies: Floats, way: CopyWay, n_tensors: int = 1) -> Floats:
        """A weight copy of `n_copies` pieces, of `n_tensors` weights; nothing where there are no bytes."""

    def inside_ns(self, n_bytes: Floats) -> Floats:
        """Moving so much inside the device; nothing where there are no bytes."""

    @property
    def routed_copy_delay_ns(self) -> float:
        """From the router's flags being on the host to the first piece of a copy that they decide."""

    @property
    def divided_copy_delay_ns(self) -> float:
        """The same where the CPU begins with its share of the experts first."""

    @property
    def begin_ns(self) -> float:
        """From a pass's start to its first step."""

    @property
    def token_ns(self) -> float:
        """From the sampled token to its being known on the host."""

    def in_range(self, step: Step, points: Points) -> Flags:
        """Which points lie where the costs were measured."""


@dataclass(frozen=True, slots=True)
class RateCosts:
    """The rates of one machine, by the rules of the `sim` device, on a host that issues in no time."""

    machine: SimMachine
    dtype: torch.dtype

    def step_ns(self, step: Step, points: Points, distinct: Floats) -> Floats:
        m = self.machine
        if step.where in ("out", "in"):
            n_bytes = points.n_tokens * step.row_bytes if step.row_bytes else float(step_bytes(step))
            return np.asarray(m.link_latency_us * 1e3 + n_bytes / m.link_gb_s + 0.0 * points.n_past)
        flops, moved = step_work(step, points.n_tokens, points.n_past, distinct, self.dtype)
        if step.where == "host":
            return np.maximum(flops / m.host_gflop_s, moved / m.host_memory_gb_s)
        return np.maximum(flops / (m.gemm_tflop_s * 1e3), moved / m.memory_gb_s) + m.launch_us * 1e3

    @property
    def runs_by_tensor(self) -> bool:
        return False

    def copy_ns(self, n_bytes: Floats, n_copies: Floats, way: CopyWay, n_tensors: int = 1) -> Floats:
        return np.asarray(n_copies * self.machine.link_latency_us * 1e3 + n_bytes / self.machine.link_gb_s)

    def inside_ns(self, n_bytes: Floats) -> Floats:
        m = self.machine
        return np.where(n_bytes > 0, 2 * n_bytes / m.memory_gb_s + m.launch_us * 1e3, 0.0)

    @property
    def routed_copy_delay_ns(self) -> float:
        return 0.0

    @property
    def divided_copy_delay_ns(self) -> float:
        return 0.0

    @property
    def begin_ns(self) -> float:
        return 0.0

    @property
    def token_ns(self) -> float:
        return self.machine.link_latency_us * 1e3 + 8 / self.machine.link_gb_s

    def in_range(self, step: Step, points: Points) -> Flags:
        return np.ones(len(points.n_tokens), np.bool_)


def step_bytes(step: Step) -> int:
    """What a copy carries that does not grow with the tokens: the router's flags, one byte an expert."""
    assert step.layer is not None
    moe = step.layer.moe
    return 0 if moe is None else moe.n_experts
