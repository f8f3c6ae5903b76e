"""What a pass streams, in order: one item for each split that a ubatch computes on a device."""

from __future__ import annotations

from collections.abc import Sequence

from executor.job import Ubatch
from executor.placed.model import PlacedModel
from executor.policies.base import Item, Policy
from executor.weights.splits import Split


def plan_items(placed: PlacedModel, policy: Policy, ubatches: Sequence[Ubatch]) -> list[list[Item]]:
    """The streamed items of each lane, numbered from 0 in the order in which its steps reach them."""
    lanes: list[list[Item]] = [[] for _ in placed.lanes]
    for ubatch in ubatches:
        for split in placed.splits:
            if _is_on_device(policy, ubatch, split):
                lane = lanes[placed.lane_of[split.layer]]
                lane.append(Item(len(lane), ubatch, split))
    return lanes


def _is_on_device(policy: Policy, ubatch: Ubatch, split: Split) -> bool:
    """Mixers and shared experts work beside what is on the device: their weights stream whatever the regime."""
    return split.what not in ("ffn", "experts") or policy.regime(ubatch.n_tokens, split) == "stream"
