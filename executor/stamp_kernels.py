"""Readings of a GPU's own clock inside kernels, and a kernel that does nothing else. Needs Triton."""

from __future__ import annotations

import torch
from triton import jit
from triton import language as tl


@jit
def stamp_here(into: tl.tensor) -> None:
    """The clock, in ns, to `into` (None: nowhere)."""
    if into is not None:
        now = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
        tl.store(into, now)


@jit
def stamp_by_first(into: tl.tensor) -> None:
    """The same by the first program of a kernel's grid."""
    if tl.program_id(0) + tl.program_id(1) == 0:
        stamp_here(into)


@jit
def _stamp(into: tl.tensor) -> None:
    stamp_here(into)


def stamp(into: torch.Tensor) -> None:
    """The clock's nanoseconds into `into` (1,) int64, on the current stream of its device."""
    _stamp[(1,)](into, num_warps=1)
