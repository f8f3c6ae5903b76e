"""Replays a step's kernel launches as a CUDA graph: one call instead of some thirty launches from Python.

A step is run as it is the first time (libraries and kernels initialise) and recorded right after; from then on
it is replayed. Recorded steps share one memory pool: what a step allocates dies inside it. A replay gives the
same bits as another replay; the first run may differ in the last bit, as libraries see another workspace then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch

from executor.devices.base import ReplayKey

_MOST_GRAPHS = 4096  # each keeps some tens of KiB on the device; beyond, steps are launched as they are
_MOST_VARIANTS = 64  # of one step, lest those that differ at each position leave no room for the others


class Replays:
    """The recorded steps of one device. Call on the stream that they run on, which is always the same."""

    def __init__(self) -> None:
        self._graphs: dict[ReplayKey, torch.cuda.CUDAGraph] = {}
        self._variants: Counter[Hashable] = Counter()
        self._pool: Any = None

    def launch(self, key: ReplayKey, fn: Callable[[], None]) -> None:
        """Do what `fn` does, by replay where it was recorded."""
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        fn()
        if len(self._graphs) < _MOST_GRAPHS and self._variants[key.step] < _MOST_VARIANTS:
            self._variants[key.step] += 1
            self._graphs[key] = self._record(fn)

    def clear(self) -> None:
        """Forget all recorded graphs, and give their memory back."""
        self._graphs.clear()
        self._variants.clear()
        self._pool = None

    def _record(self, fn: Callable[[], None]) -> torch.cuda.CUDAGraph:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            fn()
        finally:
            graph.capture_end()
        return graph
