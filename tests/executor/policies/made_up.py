"""Units, items and measured passes without a model, for tests of what an arm decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from executor.arrays import Flags
from executor.passes import EventRecord, ExpertsRecord, PassResult, Ubatch, UbatchRecord
from executor.policies.base import DIVIDED_SELECTIVE, INLINE_WHOLE, Item, Plan, Policy, Regime
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


class Divided(Policy):
    """The host computes a `host_share` of what is missing, drawn by lot but the same each time."""

    traits = ArmTraits("divided", "Dividing experts", "inline", computes_on_host=True, divides=True)
    host_share = 0.5

    def plan(self, item: Item) -> Plan:
        return DIVIDED_SELECTIVE if item.is_moe else INLINE_WHOLE

    def regime(self, n_tokens: int, unit: TransferUnit) -> Regime:
        return "stream"

    def divide(self, item: Item, missing: Flags) -> Flags | None:
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
