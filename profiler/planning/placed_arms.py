"""Placements with the arms that are measured under each: from `-ot`, `-ncmoe` and `-ngl`, or, under `--vram-budget`,
what fits beside each arm's slots and bank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from executor.errors import HprofError
from executor.memory.budget import Budget, DeviceShare, fit_to_budget
from executor.memory.footprint import footprint
from executor.model import Model
from executor.placement.place import EVERYTHING_RESIDENT, Placement, first_resident_layer, layers_to_devices, place
from executor.policies import FULL, arm_traits, make_policy
from executor.session import SessionOptions
from profiler.planning.llama_memory import llama_cpp_shares
from profiler.planning.request import PlacementOptions, RunRequest


@dataclass(frozen=True, slots=True)
class PlacedArms:
    """One placement, measured in a session of its own. `suffix` sets its arms' names apart: `on@2`.

    `runs` are the arms in order; one that is named twice runs twice, which shows how much the machine itself varies.
    Under a VRAM budget the arms' placements differ; `placement` is then the first arm's.
    """

    suffix: str
    placement: Placement
    runs: tuple[str, ...]
    budgeted: BudgetPlacements | None = None

    @property
    def arms(self) -> tuple[str, ...]:
        """Each arm once."""
        return tuple(dict.fromkeys(self.runs))

    @property
    def labels(self) -> dict[str, str]:
        """The names in the capture, in the order of `runs`, and the arm of each: `off`, `off@copy2`."""
        counts: Counter[str] = Counter()
        labels = {}
        for arm in self.runs:
            counts[arm] += 1
            labels[self.label(arm, counts[arm])] = arm
        return labels

    @property
    def session_placement(self) -> Placement | Mapping[str, Placement]:
        """What the session is given."""
        return self.placement if self.budgeted is None else self.budgeted.by_arm

    def placement_of(self, arm: str) -> Placement:
        return self.placement if self.budgeted is None else self.budgeted.by_arm[arm]

    def label(self, arm: str, copy: int = 1) -> str:
        """The arm's name in the capture."""
        return arm + (f"@copy{copy}" if copy > 1 else "") + self.suffix


@dataclass(frozen=True, slots=True)
class BudgetPlacements:
    """What fits on each device, by arm. `kept_bytes`: what the context, activations and scratch take of it at most."""

    by_arm: Mapping[str, Placement]
    budget: Budget
    kept_bytes: int


def placed_arms(request: RunRequest, model: Model, session: SessionOptions) -> tuple[PlacedArms, ...]:
    """A request's placements in their order, each with its arms.

    An arm that is resident by design streams nothing, so one placement measures it for all.
    """
    setups = []
    for number, options in enumerate(request.placements, start=1):
        runs = tuple(arm for arm in request.arms if number == 1 or not arm_traits(arm).is_resident)
        suffix = "" if number == 1 else f"@{number}"
        if runs and options.vram_budget is not None:
            budgeted = under_budget(request, model, session, runs, options.vram_budget)
            setups.append(PlacedArms(suffix, budgeted.by_arm[runs[0]], runs, budgeted))
        elif runs:
            setups.append(PlacedArms(suffix, _place(request, model, options), runs))
    return tuple(setups)


def device_of_layers(request: RunRequest, model: Model, n_gpu_layers: int | None = None) -> list[int]:
    """The device of each layer and, last, the output's."""
    n_layers = len(model.shape.layers)
    shares = request.tensor_split or (1.0,) * request.device.n_devices
    return layers_to_devices(n_layers, shares, first_resident_layer(n_layers, n_gpu_layers))


def _place(request: RunRequest, model: Model, options: PlacementOptions) -> Placement:
    if options.n_cpu_moe and not any("_exps" in name for name in model.tensors):
        raise HprofError(
            f"-ncmoe {options.n_cpu_moe}: {model.shape.name} has no experts; choose its host weights with "
            '-ot, such as -ot "ffn_.*=CPU".'
        )
    return place(
        model.tensors,
        overrides=options.overrides,
        n_cpu_moe=options.n_cpu_moe,
        n_gpu_layers=options.n_gpu_layers,
        device_of=device_of_layers(request, model, options.n_gpu_layers),
    )


def under_budget(
    request: RunRequest, model: Model, session: SessionOptions, arms: Iterable[str], budget: Budget
) -> BudgetPlacements:
    """The most resident layers that fit beside each arm's slots and bank, the states and the activations."""
    policies = {arm: make_policy(arm, request.policy) for arm in arms if not arm_traits(arm).is_resident}
    shares, kept_bytes = device_shares(request, model, session)
    fitting = fit_to_budget(model, policies, budget, shares) if policies else {}
    by_arm = {arm: fitting.get(arm, EVERYTHING_RESIDENT) for arm in arms}
    return BudgetPlacements(by_arm, budget, kept_bytes)


def device_shares(request: RunRequest, model: Model, session: SessionOptions) -> tuple[list[DeviceShare], int]:
    """What each device would hold with all of its layers resident, and what of that is no weights, at most."""
    if request.engine == "llama.cpp":
        return llama_cpp_shares(model, device_of_layers(request, model), request.cells)
    n_logits = max(cell.n_logits(all_logits=request.all_logits) for cell in request.cells)
    counted = footprint(model, EVERYTHING_RESIDENT, (FULL,), session, n_logits, all_logits=request.all_logits)
    device_of = device_of_layers(request, model)
    shares = [
        DeviceShare([layer for layer, device in enumerate(device_of[:-1]) if device == i], held.total)
        for i, held in enumerate(counted.devices)
    ]
    return shares, max(held.total - held.resident for held in counted.devices)
