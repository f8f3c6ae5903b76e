"""Units, items and measured passes without a model, for tests of what an arm decides."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch

from executor.arrays import Flags, Int64
from executor.passes import EventRecord, ExpertsRecord, PassResult, Ubatch, UbatchRecord
from executor.policies.base import (
    AHEAD_WHOLE,
    DIVIDED_FROM_BANK,
    DIVIDED_SELECTIVE,
    FROM_BANK,
    INLINE_SELECTIVE,
    INLINE_WHOLE,
    Item,
    Plan,
    Policy,
    Regime,
)
from executor.policies.traits import ArmTraits
from executor.weights.transfer_units import HostSegment, StepKind, TransferUnit

N_EXPERTS = 16
EXPERT_BYTES = 100


def unit(*, layer: int = 0, n_experts: int = N_EXPERTS, n_bytes: int = N_EXPERTS * EXPERT_BYTES) -> TransferUnit:
    """A unit without tensors; `n_experts` 0 makes it a dense one."""
    source = torch.zeros(n_bytes, dtype=torch.uint8)
    what: StepKind = "experts" if n_experts else "ffn"
    return TransferUnit(
        layer, layer, what, (), n_bytes, n_experts, (HostSegment(source, 0, n_bytes // max(1, n_experts)),)
    )


def ubatch(n_tokens: int, *, number: int = 0, n_past: int = 0) -> Ubatch:
    return Ubatch(number, "prefill", n_tokens, n_past, n_outputs=0)


def moe_item(n_tokens: int = 64, *, layer: int = 0, number: int = 0, n_past: int = 0) -> Item:
    return Item(number, ubatch(n_tokens, number=number, n_past=n_past), unit(layer=layer))


def dense_item(n_tokens: int = 64, *, layer: int = 0) -> Item:
    return Item(0, ubatch(n_tokens), unit(layer=layer, n_experts=0))


def flags(*experts: int, n: int = N_EXPERTS) -> Flags:
    """One flag an expert, set for those named."""
    found = np.zeros(n, dtype=np.bool_)
    found[list(experts)] = True
    return found


def hot_experts(plan: Plan) -> list[int]:
    """The experts that a plan sends ahead."""
    return [] if plan.hot is None else np.flatnonzero(plan.hot).tolist()


def measured(
    policy: str = "hot",
    *,
    n_tokens: int = 64,
    ubatch_ns: int = 1000,
    compute_ns: int = 400,
    bytes_per_ns: float = 1.0,
    used: Flags | None = None,
    n_past: int = 0,
) -> PassResult:
    """A pass of one ubatch through one MoE layer, that computed and copied at the given speeds."""
    place: dict[str, Any] = {"device": 0, "phase": "prefill", "ubatch": 0, "layer": 0}
    copied = 1000
    events = [
        EventRecord("compute", "experts", 0, compute_ns, stream="compute", **place),
        EventRecord("h2d", "copy", 0, int(copied / bytes_per_ns), stream="copy", tensor="exps", bytes=copied, **place),
    ]
    bitmap = np.packbits(flags() if used is None else used, bitorder="little").tobytes()
    experts = [ExpertsRecord("prefill", 0, 0, n_tokens, N_EXPERTS, 0, 0, None, None, bitmap)]
    ubatches = [UbatchRecord("prefill", 0, n_tokens, n_past, policy, 0, ubatch_ns)]
    nothing: dict[str, Any] = dict.fromkeys(
        ("ttft_ns", "prefill_ns", "decode_ns", "sampling_ns", "vram_peak", "vram_resident", "vram_slots", "vram_bank")
    )
    return PassResult(
        t_start=0,
        t_end=ubatch_ns,
        tokens=[],
        bytes_h2d=copied,
        logits_digest=None,
        events=events,
        ubatches=ubatches,
        experts=experts,
        **nothing,
    )


def plans(policy: Policy, *items: Item) -> list[tuple[str, str]]:
    """When and what a policy copies for each item."""
    return [(plan.when, plan.what) for plan in map(policy.plan, items)]


def crossed_experts(result: PassResult) -> Counter[tuple[int, int | None]]:
    """How many experts' copies crossed the bus, by ubatch and layer."""
    crossed: Counter[tuple[int, int | None]] = Counter()
    for event in result.events:
        if event.kind == "h2d" and "exps" in (event.tensor or ""):
            crossed[event.ubatch, event.layer] += event.n_experts or 0
    return crossed


class ByLot(Policy):
    """Any plan for any item, drawn by lot, but the same each time for an item."""

    traits = ArmTraits("by lot", "Deciding by lot", "chosen")
    seed = 0

    @property
    def n_slots(self) -> int:
        return self.options.slots

    @property
    def cache_bytes(self) -> int:
        return self.options.cache_bytes

    def plan(self, item: Item) -> Plan:
        rng = self.lot(item.number)
        if not item.is_moe:
            return (INLINE_WHOLE, AHEAD_WHOLE)[rng.integers(2)]
        found = self.choices(rng.random(item.unit.n_experts) < rng.random())
        return found[rng.integers(len(found))]

    def choices(self, hot: Flags) -> list[Plan]:
        """What may be planned for experts, some of which are `hot`."""
        return [INLINE_WHOLE, INLINE_SELECTIVE, AHEAD_WHOLE, FROM_BANK, Plan("ahead", "selective", hot)]

    def lot(self, *numbers: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, *numbers))


class DividedByLot(ByLot):
    """Some of what is planned is divided, with any part for the host, and some steps are the host's alone."""

    traits = ArmTraits("divided by lot", "Dividing by lot", "chosen", computes_on_host=True, divides=True)

    def regime(self, n_tokens: int, unit: TransferUnit) -> Regime:
        return "cpu" if self.lot(n_tokens, unit.number).random() < 0.15 else "stream"

    def choices(self, hot: Flags) -> list[Plan]:
        divided = [DIVIDED_SELECTIVE, DIVIDED_FROM_BANK, Plan("ahead", "selective", hot, divided=True)]
        return [*super().choices(hot), *divided]

    def n_for_host(self, item: Item, n_missing: int) -> int:
        return int(self.lot(item.number).integers(n_missing + 1)) if self.plan(item).when == "inline" else 0

    def divide(self, item: Item, missing: Flags, rows: Int64) -> Flags | None:
        rng = self.lot(item.number)
        share = (0.0, 0.3, 0.6, 1.1)[rng.integers(4)]
        return missing & (rng.random(missing.size) < share)


class Divided(Policy):
    """The host computes a `host_share` of what is missing, drawn by lot but the same each time."""

    traits = ArmTraits("divided", "Dividing experts", "inline", computes_on_host=True, divides=True)
    host_share = 0.5

    def plan(self, item: Item) -> Plan:
        return DIVIDED_SELECTIVE if item.is_moe else INLINE_WHOLE

    def regime(self, n_tokens: int, unit: TransferUnit) -> Regime:
        return "stream"

    def divide(self, item: Item, missing: Flags, rows: Int64) -> Flags | None:
        rng = np.random.default_rng(item.number)
        return missing & (rng.random(missing.size) < self.host_share)


class HotDivided(Divided):
    """Some experts go ahead whatever is used; of what is missing then the host takes its share."""

    @property
    def n_slots(self) -> int:
        return self.options.slots

    def plan(self, item: Item) -> Plan:
        if not item.is_moe:
            return INLINE_WHOLE
        hot = np.random.default_rng(item.number).random(item.unit.n_experts) < 0.3
        return Plan("ahead", "selective", hot, divided=True)
