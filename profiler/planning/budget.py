"""Each arm's placement under `--vram-budget`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from executor.memory.budget import Share, fit_to_budget
from executor.memory.footprint import footprint
from executor.model import Model
from executor.placement.devices import layers_to_devices
from executor.placement.place import EVERYTHING_RESIDENT, Placement
from executor.policies import FULL, make_policy
from executor.session import SessionOptions
from profiler.planning.request import RunRequest


@dataclass(frozen=True, slots=True)
class Budgeted:
    """What fits on each device, by arm. `kept_bytes`: what the context, activations and scratch take of it at most."""

    by_arm: Mapping[str, Placement]
    n_bytes: int
    kept_bytes: int


def under_budget(
    request: RunRequest, model: Model, session: SessionOptions, arms: Iterable[str], budget_bytes: int
) -> Budgeted:
    """The most resident layers that fit beside each arm's slots and bank, the states and the activations."""
    policies = {arm: make_policy(arm, request.policy) for arm in arms if arm != FULL}
    n_logits = max(cell.n_gen for cell in request.cells) + 1
    counted = footprint(model, EVERYTHING_RESIDENT, (FULL,), session, n_logits, computes_on_host=False)
    device_of = layers_to_devices(len(model.shape.layers), request.tensor_split or (1.0,) * len(counted.devices))
    shares = [
        Share([layer for layer, device in enumerate(device_of) if device == i], held.total)
        for i, held in enumerate(counted.devices)
    ]
    fitting = fit_to_budget(model, policies, budget_bytes, shares) if policies else {}
    by_arm = {arm: fitting.get(arm, EVERYTHING_RESIDENT) for arm in arms}
    return Budgeted(by_arm, budget_bytes, max(held.total - held.resident for held in counted.devices))
