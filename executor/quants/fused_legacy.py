"""Decoders of `executor.quants.legacy`'s types for the fused kernel: blocks of 32 weights.

A decoder takes pointers to blocks, which of its block's cells each cell is, the lanes and the mask; it returns the
cell's planes as (cells, 8) float32. Here plane 0 is weights 0 to 15 of a block, plane 1 weights 16 to 31.
"""

from __future__ import annotations

from triton import jit
from triton import language as tl

from executor.quants.fused_loads import Cells, Lanes, Mask, Plane, Pointers, eight, half, times


@jit
def q8_0(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane]:
    q = eight(blocks, 2 + cell * 8, lane, inside).to(tl.int8)
    return (times(q, half(blocks, 0, inside)),)


@jit
def q4_0(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane]:
    d = half(blocks, 0, inside)
    q = eight(blocks, 2 + cell * 8, lane, inside)
    return times((q & 15) - 8, d), times((q >> 4) - 8, d)


@jit
def q4_1(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane]:
    d, m = half(blocks, 0, inside), half(blocks, 2, inside)[:, None]
    q = eight(blocks, 4 + cell * 8, lane, inside)
    return times(q & 15, d) + m, times(q >> 4, d) + m


@jit
def q5_0(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane]:
    d = half(blocks, 0, inside)
    q = eight(blocks, 6 + cell * 8, lane, inside)
    first, second = _fifth_bits(blocks, 2, cell, lane, inside), _fifth_bits(blocks, 4, cell, lane, inside)
    return times(((q & 15) | first) - 16, d), times(((q >> 4) | second) - 16, d)


@jit
def q5_1(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane]:
    d, m = half(blocks, 0, inside), half(blocks, 2, inside)[:, None]
    q = eight(blocks, 8 + cell * 8, lane, inside)
    first, second = _fifth_bits(blocks, 4, cell, lane, inside), _fifth_bits(blocks, 6, cell, lane, inside)
    return times((q & 15) | first, d) + m, times((q >> 4) | second, d) + m


@jit
def _fifth_bits(blocks: Pointers, offset: Cells, cell: Cells, lane: Lanes, inside: Mask) -> Plane:
    """The 2 bytes at `offset` hold a plane's 16 fifth bits, weight 0's lowest."""
    of_plane = tl.load((blocks + offset).to(tl.pointer_type(tl.uint16)), mask=inside).to(tl.int32)
    of_cell = of_plane >> (cell * 8)
    return ((of_cell[:, None] >> lane[None, :]) & 1) << 4
