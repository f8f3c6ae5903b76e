"""Offload loops as people write them, each with waits that can be left out one by one.

They ask `cuda` for what torch.cuda has, so that the stand-in and a real GPU run the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from profiler.watching.checking import Check

N_LAYERS: Final = 5
N: Final = 1 << 12
Loop = Callable[[Any, Check | None, str | None], None]


def double_buffer(cuda: Any, check: Check | None, without: str | None) -> None:
    """Two slots in one slab, filled ahead on a copy stream from one pinned buffer that the thread refills."""
    compute, copies = cuda.current_stream(), cuda.Stream()
    slab, staging, result, x = cuda.empty(2 * N), cuda.pinned(N), cuda.pinned(N), cuda.empty(N)
    slots = [slab[:N], slab[N:]]
    x.zero_()
    ready, free = [cuda.Event() for _ in range(2)], [cuda.Event() for _ in range(2)]
    copies.wait_stream(compute)  # the slab was allocated there

    def fetch(layer: int) -> None:
        slot = layer % 2
        if layer and without != "refill":
            ready[1 - slot].synchronize()
        staging.fill_(layer)
        if check is not None:
            check.name(staging, f"layer {layer}")
        with cuda.stream(copies):
            if layer >= 2 and without != "free":
                copies.wait_event(free[slot])
            target = slots[0 if without == "slot" else slot]
            target.copy_(staging, non_blocking=True)
            copies.record_event(ready[slot])

    fetch(0)
    for layer in range(N_LAYERS):
        slot = layer % 2
        if layer + 1 < N_LAYERS:
            fetch(layer + 1)
        if without != "ready":
            compute.wait_event(ready[slot])
        if check is not None:
            check.expects(slots[slot], f"layer {layer}")
        x.add_(slots[slot])
        compute.record_event(free[slot])
    result.copy_(x, non_blocking=True)
    if without != "result":
        compute.synchronize()
    result.sum()
    cuda.synchronize()


def overlapping_views(cuda: Any, check: Check | None, without: str | None) -> None:
    """The same slab used by two streams, in halves that are apart; without `offset` they overlap."""
    side, slab, weights = cuda.Stream(), cuda.empty(2 * N), cuda.pinned(N)
    slab.zero_()
    side.wait_stream(cuda.current_stream())
    into = slab[N // 2 : N // 2 + N] if without == "offset" else slab[N:]
    with cuda.stream(side):
        into.copy_(weights, non_blocking=True)
    slab[:N].add_(1)
    cuda.synchronize()


def group_offload(cuda: Any, check: Check | None, without: str | None) -> None:
    """As diffusers' group offload: the next group goes up on a side stream; the thread waits before it is used."""
    compute, side = cuda.current_stream(), cuda.Stream()
    weights = [cuda.pinned(N) for _ in range(N_LAYERS)]
    x = cuda.empty(N)
    x.zero_()

    def onload(layer: int) -> torch.Tensor:
        with cuda.stream(side):
            on_device = cuda.to_device(weights[layer])
        if without != "record_stream":
            cuda.record_stream(on_device, compute)
        return on_device  # type: ignore[no-any-return]

    following = onload(0)
    for layer in range(N_LAYERS):
        if without != "synchronize":
            side.synchronize()
        group = following
        if layer + 1 < N_LAYERS:
            following = onload(layer + 1)
        x.add_(group)
        del group  # offloaded: its memory may go to the next group
    del following
    cuda.synchronize()


def align_hook(cuda: Any, check: Check | None, without: str | None) -> None:
    """As accelerate's hook, made asynchronous: weights go up before a module's forward and are dropped after it."""
    compute, side = cuda.current_stream(), cuda.Stream()
    weights = [cuda.pinned(N) for _ in range(N_LAYERS)]
    x, out = cuda.empty(N), cuda.pinned(N)
    x.zero_()
    for weight in weights:
        on_device = cuda.empty(N)  # on the compute stream, whose earlier work may still use this memory
        if without != "fork":
            side.wait_stream(compute)
        with cuda.stream(side):
            on_device.copy_(weight, non_blocking=True)
        if without != "join":
            compute.wait_stream(side)
        x.mul_(on_device)
        del on_device
    out.copy_(x, non_blocking=without == "blocking")
    out.tolist()
    cuda.synchronize()


LOOPS: Final[dict[str, tuple[Loop, tuple[str, ...]]]] = {
    "double buffer": (double_buffer, ("ready", "free", "refill", "result", "slot")),
    "views of a slab": (overlapping_views, ("offset",)),
    "group offload": (group_offload, ("synchronize", "record_stream")),
    "align hook": (align_hook, ("fork", "join", "blocking")),
}
"""Each with what can be left out (or, for `slot` and `offset`, be wrong)."""
CASES: Final = [(name, without) for name, (_, waits) in LOOPS.items() for without in (None, *waits)]
READ, REFILL = "read before its write", "write before its reader"
OVERWRITE, WRONG, UNDER = "write before a write", "wrong bytes", "overwritten under its reader"
_LEFT_OUT: Final[dict[tuple[str, str | None], set[tuple[str, str]]]] = {
    ("double buffer", "ready"): {(READ, "default")},
    ("double buffer", "free"): {(REFILL, "1")},
    ("double buffer", "refill"): {(REFILL, "thread")},
    ("double buffer", "result"): {(READ, "thread")},
    ("double buffer", "slot"): {(UNDER, "default"), (READ, "default"), (WRONG, "default")},
    ("views of a slab", "offset"): {(OVERWRITE, "default")},
    ("group offload", "synchronize"): {(READ, "default")},
    ("group offload", "record_stream"): {(REFILL, "1")},
    ("align hook", "fork"): {(REFILL, "1")},
    ("align hook", "join"): {(READ, "default"), (REFILL, "default")},
    ("align hook", "blocking"): {(READ, "thread")},
}
FOUND: Final = {case: _LEFT_OUT.get(case, set()) for case in CASES}
"""What is to be found in each case, and on which stream the second operation is."""


class RealCuda:
    """torch.cuda, as loops ask for it."""

    Stream, Event = torch.cuda.Stream, torch.cuda.Event
    stream = staticmethod(torch.cuda.stream)
    current_stream = staticmethod(torch.cuda.current_stream)
    synchronize = staticmethod(torch.cuda.synchronize)

    def empty(self, n: int) -> torch.Tensor:
        return torch.empty(n, device="cuda")

    def pinned(self, n: int) -> torch.Tensor:
        return torch.zeros(n, pin_memory=True)

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("cuda", non_blocking=True)

    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        tensor.record_stream(stream)


def run_loop(cuda: Any, check: Check | None, name: str, without: str | None) -> None:
    """Run one of LOOPS, without one of its waits."""
    LOOPS[name][0](cuda, check, without)
