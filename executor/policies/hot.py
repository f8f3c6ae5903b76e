"""The `hot` arm: the experts most likely to be needed go ahead, the missing rest follows the router."""

from __future__ import annotations

import numpy as np

from executor.policies.base import AHEAD_WHOLE, Flags, Item, Plan, PolicyOptions
from executor.policies.learned import LayerTimes, Popularity
from executor.policies.simple import On
from executor.records import PassResult

_SURE = 0.95  # an expert this likely is worth copying early even where no compute hides it
_UNLIKELY = 0.02  # one this unlikely is not worth the bus even where compute would hide it


class Hot(On):
    """Prefetches H experts a layer: as many as the layer's compute time can hide, and all that are sure to be used.

    Both are learned: the chances from the flags of earlier ubatches, the compute time from earlier passes.
    Copying early an expert of chance p saves p of its copy and costs 1 - p of it once the link is busy, so
    beyond what compute hides only sure ones pay.
    """

    def __init__(self, name: str, options: PolicyOptions) -> None:
        super().__init__(name, options)
        self.popularity = Popularity()
        self.times = LayerTimes()

    def plan(self, item: Item) -> Plan:
        if not item.is_moe:
            return AHEAD_WHOLE
        return Plan("ahead", "selective", self._hottest(item))

    def observe(self, item: Item, used: Flags) -> None:
        self.popularity.observe(item.split.layer, item.ubatch.n_tokens, used)

    def learn(self, result: PassResult) -> None:
        layers = {record.layer for record in result.experts}
        if layers:
            self.times.learn(result, 1 + max(layers))

    def n_hidden(self, item: Item) -> int:
        """How many experts' copies fit under one layer's compute time."""
        compute_ns = self.times.compute_ns(item.ubatch)
        if compute_ns is None or self.times.bytes_per_ns is None:
            return item.split.n_experts // 2
        return int(compute_ns * self.times.bytes_per_ns / item.split.expert_bytes)

    def _hottest(self, item: Item) -> Flags | None:
        chance = self.popularity.chance_of_use(item.split.layer, item.ubatch.n_tokens)
        if chance is None:
            return None
        hottest = np.argsort(-chance, kind="stable")[: self.n_hidden(item)]
        hot = chance >= _SURE
        hot[hottest] |= chance[hottest] > _UNLIKELY
        return hot
