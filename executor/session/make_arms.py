"""Reserves what arms stream through: slots that all of them share, and each one's banks."""

from __future__ import annotations

from collections.abc import Mapping

from executor.errors import HprofError
from executor.placed.lane import Lane
from executor.placed.model import PlacedModel
from executor.placement.place import Placement
from executor.policies.base import Policy
from executor.quants.dispatch import has_fused
from executor.session.arm import Arm, largest_splits
from executor.streaming.bank import Bank
from executor.streaming.build_banks import build_banks
from executor.streaming.streamer import Streamer


def make_arms(
    placed: PlacedModel, policies: Mapping[str, Policy], placements: Mapping[str, Placement]
) -> dict[str, Arm]:
    """Every arm by name. Raises HprofError where an arm's bank does not fit, or its device has no kernel for it."""
    most_slots = max(policy.n_slots for policy in policies.values())
    return {name: _make_arm(placed, policy, placements[name], most_slots) for name, policy in policies.items()}


def _make_arm(placed: PlacedModel, policy: Policy, placement: Placement, most_slots: int) -> Arm:
    mine = placed.with_splits(placed.splits_of(placement))
    streamers = []
    for lane, sizes in zip(placed.lanes, largest_splits(placed, placed.splits), strict=True):
        for kind, n_bytes in sizes.items():
            lane.reserve_slots(kind, most_slots, n_bytes)
        slots = {kind: buffers[: policy.n_slots] for kind, buffers in lane.slots.items()}
        streamers.append(Streamer(lane.device, policy, slots, _make_banks(mine, policy, lane)))
    return Arm(policy, placement, mine, streamers)


def _make_banks(placed: PlacedModel, policy: Policy, lane: Lane) -> dict[int, Bank]:
    if not policy.cache_bytes:
        return {}
    if lane.device.kind == "cuda" and not has_fused():
        raise HprofError(
            f"arm '{policy.name}' is refused: without Triton this GPU has no kernel for products with cached "
            "experts, and copying the bank for each ubatch would cost more than it saves; install triton"
        )
    splits = [split for split in placed.splits if split.layer in lane.layers]
    budget = policy.cache_bytes // len(placed.lanes)
    moe = {split.layer: placed.moe(split.layer) for split in splits}
    n_used = {layer: ffn.n_used for layer, ffn in moe.items() if ffn is not None}
    return build_banks(lane.device, splits, budget, policy.options.cache_policy, n_used)
