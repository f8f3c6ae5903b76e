"""What an arm learns from earlier ubatches: which experts are used, and how long a layer computes."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from executor.policies.base import Flags, Ubatch
from executor.records import PassResult

_MEMORY = 0.98  # each observation lessens the weight of those before it: popularity drifts with the text


def size_class(n: int) -> int:
    """Sizes within a factor of about 1.4 share a class: class k holds sizes near 2**(k / 2)."""
    return round(2 * np.log2(max(1, n)))


class Popularity:
    """How often each expert of each layer was used, by size of ubatch."""

    def __init__(self) -> None:
        self._used: dict[tuple[int, int], NDArray[np.float64]] = {}
        self._seen: dict[tuple[int, int], float] = defaultdict(float)

    def observe(self, layer: int, n_tokens: int, used: Flags) -> None:
        key = (layer, size_class(n_tokens))
        counts = self._used.setdefault(key, np.zeros(used.size))
        counts *= _MEMORY
        counts += used
        self._seen[key] = self._seen[key] * _MEMORY + 1

    def chance_of_use(self, layer: int, n_tokens: int) -> NDArray[np.float64] | None:
        """Each expert's chance to be used by a ubatch of `n_tokens`, (n_experts,); None before any was seen.

        The share of like-sized ubatches that used it; other sizes break ties, and serve alone where no
        ubatch of this size was seen.
        """
        same = (layer, size_class(n_tokens))
        others = [self._used[key] / self._seen[key] for key in self._used if key[0] == layer and key != same]
        tie_break = np.mean(others, axis=0) if others else 0.0
        if same in self._used:
            return np.asarray((self._used[same] / self._seen[same] + 1e-3 * tie_break) / 1.001)
        return np.asarray(tie_break) if others else None

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
