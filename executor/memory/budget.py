"""Placement under a VRAM budget: as many layers' experts (or dense FFNs) resident as fit beside everything else.

What prefetch reserves for its slots, and a cache for its bank, is then paid in resident layers: each arm gets
the placement that its own reservations leave room for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from executor.errors import BudgetTooSmallError, HprofError
from executor.model import Model, TensorInfo
from executor.placement.place import Placement, is_movable
from executor.policies.base import Policy
from executor.units import parse_bytes, spell_bytes
from executor.weights.transfer_units import StepKind, step_kind


@dataclass(frozen=True, slots=True)
class Budget:
    """What each device may hold, in bytes: one figure for all of them, or one for each, in their order."""

    n_bytes: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, option: str) -> Budget:
        """`24GiB`, or `12GiB,24GiB` for two devices. Raises HprofError for anything else."""
        return cls(tuple(parse_bytes(part, option) for part in text.split(",")))

    def of(self, n_devices: int) -> tuple[int, ...]:
        """Each device's. Raises HprofError where there are other devices than figures."""
        if len(self.n_bytes) not in (1, n_devices):
            raise HprofError(
                f"--vram-budget {self.spelled} has {len(self.n_bytes)} figures, and --n-devices is {n_devices}: give "
                "one for each device, or one for all."
            )
        return self.n_bytes * n_devices if len(self.n_bytes) == 1 else self.n_bytes

    def plus(self, n_bytes: int) -> Budget:
        """As much more on each device."""
        return Budget(tuple(own + n_bytes for own in self.n_bytes))

    def within(self, most_bytes: int) -> Budget:
        """At most so much on each device."""
        return Budget(tuple(min(own, most_bytes) for own in self.n_bytes))

    @property
    def spelled(self) -> str:
        """As `parse` reads it."""
        return ",".join(map(spell_bytes, self.n_bytes))


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """One device's part of a model: its layers, and what it would hold with all of them resident.

    `full_bytes` are weights, mixer states and activations; slots and bank come on top. `by_tensor`: a slot holds one
    weight at a time, and not all that a layer streams.
    """

    layers: Sequence[int]
    full_bytes: int
    by_tensor: bool = False


def fit_to_budget(
    model: Model,
    policies: Mapping[str, Policy],
    budget: Budget,
    shares: Sequence[DeviceShare],
    only: Collection[str] | None = None,
) -> dict[str, Placement]:
    """Each arm's placement that keeps the most layers' FFN weights resident within the budget of every device.

    The first layers of each device stream, as with `-ncmoe`; `only` tensors of these short names, where they are given.
    Raises BudgetTooSmallError, with the least budget that would do for all arms, when even with all of them in host
    memory the rest does not fit.
    """
    groups = _ffn_groups(model, only)
    needs = {arm: [_needs(policy, groups, share, len(shares)) for share in shares] for arm, policy in policies.items()}
    budgets = budget.of(len(shares))
    if needs:
        _check(model, budget, {arm: [min(of_share) for of_share in found] for arm, found in needs.items()})
    placements = {}
    for arm, found in needs.items():
        n_host = [
            next(n for n, need in enumerate(of_share) if need <= own)
            for of_share, own in zip(found, budgets, strict=True)
        ]
        placements[arm] = _placement(groups, shares, n_host, budget)
    return placements


def least_budgets(policy: Policy, model: Model, shares: Sequence[DeviceShare]) -> list[int]:
    """The least that does on each device: with all FFN weights in host memory, if that is what it takes."""
    groups = _ffn_groups(model)
    return [min(_needs(policy, groups, share, len(shares))) for share in shares]


def _needs(policy: Policy, groups: Sequence[Sequence[TensorInfo]], share: DeviceShare, n_shares: int) -> list[int]:
    """What a device holds with the FFN weights (of `groups`, by layer) of its first 0, 1, … layers in host memory."""
    bank = policy.cache_bytes // n_shares
    tensors = [[t.n_bytes for t in groups[layer]] for layer in share.layers]
    sizes = [sum(of_layer) for of_layer in tensors]
    slots = [max(of_layer, default=0) for of_layer in tensors] if share.by_tensor else sizes
    return [
        share.full_bytes - sum(sizes[:n]) + policy.n_slots * max(slots[:n], default=0) + bank
        for n in range(len(sizes) + 1)
    ]


def _check(model: Model, budget: Budget, least: Mapping[str, Sequence[int]]) -> None:
    """Raises HprofError where a device's budget is below the `least` that some arm needs there."""
    n_devices = len(next(iter(least.values())))
    if len(budget.n_bytes) == 1:
        where = "" if n_devices == 1 else " on a device"
        wanted = [(where, budget.n_bytes[0], {arm: max(needs) for arm, needs in least.items()})]
    else:
        wanted = [
            (f" on device {number}", own, {arm: needs[number] for arm, needs in least.items()})
            for number, own in enumerate(budget.of(n_devices))
        ]
    for where, own, needs in wanted:
        worst = max(needs, key=lambda arm: needs[arm])
        if needs[worst] > own:
            fitting = [arm for arm, n_bytes in needs.items() if n_bytes <= own]
            instead = "lower -d, -ub or --layers"
            raise BudgetTooSmallError(
                f"--vram-budget {budget.spelled} is too small for arm '{worst}' on {model.shape.name}, which needs "
                f"{_mib(needs[worst])}{where} even with its FFN weights in host memory",
                needs[worst],
                f"{instead}, or measure what fits, --arms {','.join(fitting)}" if fitting else instead,
            )


def _ffn_groups(model: Model, only: Collection[str] | None = None) -> list[list[TensorInfo]]:
    """Each layer's movable FFN or expert weights, those of `only` these short names."""
    groups: list[list[TensorInfo]] = [[] for _ in model.shape.layers]
    for tensor in model.tensors.values():
        if tensor.layer is not None and is_movable(tensor):
            layer = model.shape.layers[tensor.layer]
            movable: StepKind = "ffn" if layer.moe is None else "experts"
            if step_kind(tensor, layer) == movable and (only is None or tensor.short_name in only):
                groups[tensor.layer].append(tensor)
    return groups


def _mib(n_bytes: int) -> str:
    return f"{-(-n_bytes // 2**20)}MiB"


def _placement(
    groups: Sequence[Sequence[TensorInfo]], shares: Sequence[DeviceShare], n_host: Sequence[int], budget: Budget
) -> Placement:
    layers = [layer for share, n in zip(shares, n_host, strict=True) for layer in share.layers[:n]]
    host = frozenset(t.name for layer in layers for t in groups[layer])
    counts = "+".join(map(str, n_host))
    layers_said = "layer" if counts == "1" else f"{counts} layers"
    told = f"FFN of the first {layers_said} in host memory" if host else "all of it fits"
    return Placement(host, f"--vram-budget {budget.spelled} ({told})")
