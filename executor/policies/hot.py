"""The `hot` arm: the experts most likely to be needed go ahead, the missing rest follows the router.

It learns from earlier ubatches which experts are used, and from earlier passes how long a layer computes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from executor.arrays import Flags, Floats
from executor.passes import PassResult, Ubatch
from executor.policies.base import AHEAD_WHOLE, Item, Plan, PolicyOptions
from executor.policies.simple import On
from executor.policies.traits import ArmTraits

_MEMORY = 0.98  # each observation lessens the weight of those before it: popularity drifts with the text
_TIE_BREAK = 1e-3  # what other sizes of ubatch count beside the same size
_SURE = 0.95  # an expert this likely is worth copying early even where no compute hides it
_LIKELY = 0.5  # and one this likely where the link would be idle
_UNLIKELY = 0.02  # one this unlikely is not worth the bus even where compute would hide it


def size_class(n: int) -> int:
    """Sizes within a factor of about 1.4 share a class: class k holds sizes near 2**(k / 2)."""
    return round(2 * math.log2(max(1, n)))


@dataclass(slots=True)
class _Uses:
    """Decayed counts of one layer at one size of ubatch."""

    used: Floats
    seen: float = 0.0

    @property
    def share(self) -> Floats:
        return np.asarray(self.used / self.seen)


class Popularity:
    """How often each expert of each layer was used, by size of ubatch."""

    def __init__(self) -> None:
        self._uses: dict[int, dict[int, _Uses]] = defaultdict(dict)  # layer -> size class

    def observe(self, layer: int, n_tokens: int, used: Flags) -> None:
        """Take in which experts (n_experts,) a ubatch of `n_tokens` used."""
        uses = self._uses[layer].setdefault(size_class(n_tokens), _Uses(np.zeros(used.size)))
        uses.used *= _MEMORY
        uses.used += used
        uses.seen = uses.seen * _MEMORY + 1

    def chance_of_use(self, layer: int, n_tokens: int) -> Floats | None:
        """Each expert's chance to be used by a ubatch of `n_tokens`, (n_experts,); None before any was seen.

        The share of like-sized ubatches that used it; other sizes break ties, and serve alone where no
        ubatch of this size was seen.
        """
        by_size, same = self._uses[layer], size_class(n_tokens)
        others = [uses.share for size, uses in by_size.items() if size != same]
        tie_break = np.mean(others, axis=0) if others else None
        if same not in by_size:
            return tie_break
        share = by_size[same].share
        return share if tie_break is None else (share + _TIE_BREAK * tie_break) / (1 + _TIE_BREAK)

    def expected_share(self, layer: int, n_tokens: int) -> float | None:
        """D(n): the share of the layer's experts that a ubatch is expected to use."""
        chance = self.chance_of_use(layer, n_tokens)
        return None if chance is None else float(chance.mean())


class LayerTimes:
    """Compute time a layer, and copy speed, as measured in earlier passes."""

    def __init__(self) -> None:
        self._compute_ns: dict[tuple[int, int], float] = {}
        self.bytes_per_ns: float | None = None

    def learn(self, result: PassResult, n_layers: int) -> None:
        totals: dict[int, int] = defaultdict(int)
        copied = busy = 0
        for event in result.events:
            if event.kind == "compute":
                totals[event.ubatch] += event.t_end - event.t_start
            elif event.kind == "h2d" and event.bytes and event.tensor is not None:
                copied += event.bytes
                busy += event.t_end - event.t_start
        for ubatch in result.ubatches:
            if ubatch.ubatch in totals:
                key = (size_class(ubatch.n_tokens), size_class(1 + ubatch.n_past))
                self._compute_ns[key] = totals[ubatch.ubatch] / n_layers
        if busy:
            self.bytes_per_ns = copied / busy

    def compute_ns(self, ubatch: Ubatch) -> float | None:
        """C of a layer for a ubatch: of the nearest measured size and depth; None before any measurement."""
        if not self._compute_ns:
            return None
        size, depth = size_class(ubatch.n_tokens), size_class(1 + ubatch.n_past)
        nearest = min(self._compute_ns, key=lambda key: (abs(key[0] - size), abs(key[1] - depth)))
        return self._compute_ns[nearest]


class Hot(On):
    """Prefetches H experts a layer: as many as the layer's compute time can hide, and all that are sure to be used.

    Both are learned: the chances from the flags of earlier ubatches, the compute time from earlier passes.
    Copying early an expert of chance p saves p of its copy and costs 1 - p of it once the link is busy, so
    beyond what compute hides only sure ones pay. While a device waits for others its link is free: then those more
    likely than not go too.
    """

    traits = ArmTraits(
        meaning="prefetch of the hottest experts",
        subject="Prefetching the hottest experts",
        copies="ahead",
        reads=("op_offload_min_batch", "slots"),
        learns=True,
        same_without_experts="on",
        held_against=("off", "on"),
    )

    def __init__(self, name: str, options: PolicyOptions) -> None:
        super().__init__(name, options)
        self.popularity = Popularity()
        self.times = LayerTimes()

    def plan(self, item: Item) -> Plan:
        if not item.is_moe:
            return AHEAD_WHOLE
        return Plan("ahead", "selective", self._hottest(item))

    def observe(self, item: Item, used: Flags) -> None:
        self.popularity.observe(item.unit.layer, item.ubatch.n_tokens, used)

    def learn(self, result: PassResult) -> None:
        layers = {record.layer for record in result.experts}
        if layers:
            self.times.learn(result, 1 + max(layers))

    def n_hidden(self, item: Item) -> int:
        """How many experts' copies fit under one layer's compute time."""
        compute_ns = self.times.compute_ns(item.ubatch)
        if compute_ns is None or self.times.bytes_per_ns is None:
            return item.unit.n_experts // 2
        return int(compute_ns * self.times.bytes_per_ns / item.unit.expert_bytes)

    def _hottest(self, item: Item) -> Flags | None:
        chance = self.popularity.chance_of_use(item.unit.layer, item.ubatch.n_tokens)
        if chance is None:
            return None
        hottest = np.argsort(-chance, kind="stable")[: self.n_hidden(item)]
        hot = chance >= (_LIKELY if item.follows_idle else _SURE)
        hot[hottest] |= chance[hottest] > _UNLIKELY
        return hot
