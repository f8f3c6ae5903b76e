"""How the fused kernel reads stored weights, and the names of the shapes that it computes with.

A cell is 8 neighbouring bytes of packed weights, which one thread reads once. A byte holds 1, 2 or 4 weights: its
first weight is in plane 0, and so on. A plane is 8 neighbouring weights, so 16 bytes of bfloat16 in one store.
"""

from __future__ import annotations

from typing import TypeAlias

from triton import jit
from triton import language as tl

Pointers: TypeAlias = tl.tensor  # (cells,) to the first byte of each cell's block
Cells: TypeAlias = tl.tensor  # (cells,) one number a cell, int32 or float32
Lanes: TypeAlias = tl.tensor  # (8,) 0 to 7
Mask: TypeAlias = tl.tensor  # (cells,) false behind the end of the weights
Plane: TypeAlias = tl.tensor  # (cells, 8) one number a weight or byte, int32 or float32


@jit
def byte(blocks: Pointers, offset: Cells, inside: Mask) -> Cells:
    """The byte at `offset` in each block."""
    return tl.load(blocks + offset, mask=inside).to(tl.int32)


@jit
def word(blocks: Pointers, offset: Cells, inside: Mask) -> Cells:
    """The 4 bytes at `offset`, a multiple of 4, in each block; the lowest byte is the first."""
    return tl.load((blocks + offset).to(tl.pointer_type(tl.int32)), mask=inside)


@jit
def half(blocks: Pointers, offset: Cells, inside: Mask) -> Cells:
    """The float16 at `offset`, which is even, in each block."""
    return tl.load((blocks + offset).to(tl.pointer_type(tl.float16)), mask=inside).to(tl.float32)


@jit
def eight(blocks: Pointers, offset: Cells, lane: Lanes, inside: Mask) -> Plane:
    """The 8 bytes from `offset` on."""
    return tl.load((blocks + offset)[:, None] + lane[None, :], mask=inside[:, None]).to(tl.int32)


@jit
def times(integers: Plane, scale: Cells) -> Plane:
    """Integers times their cell's scale, in float32."""
    return integers.to(tl.float32) * scale[:, None]
