"""Decoders of `executor.quants.k_quants`' types for the fused kernel (see `fused_legacy`): blocks of 256 weights.

Planes lie 32 weights apart. Cell c starts at column c % 4 * 8 of the planes' 32 weights.
"""

from __future__ import annotations

from triton import jit
from triton import language as tl

from executor.quants.fused_loads import Cells, Lanes, Mask, Plane, Pointers, byte, eight, half, times, word


@jit
def q2_k(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane, Plane, Plane]:
    d, d_min = half(blocks, 80, inside), half(blocks, 82, inside)
    q = eight(blocks, 16 + cell * 8, lane, inside)
    return (
        _q2_k_plane(q, 0, blocks, cell, d, d_min, inside),
        _q2_k_plane(q, 1, blocks, cell, d, d_min, inside),
        _q2_k_plane(q, 2, blocks, cell, d, d_min, inside),
        _q2_k_plane(q, 3, blocks, cell, d, d_min, inside),
    )


@jit
def _q2_k_plane(
    q: Plane, plane: tl.constexpr, blocks: Pointers, cell: Cells, d: Cells, d_min: Cells, inside: Mask
) -> Plane:
    scales = byte(blocks, _sub_block(cell, plane), inside)
    minimum = d_min * (scales >> 4).to(tl.float32)
    return times((q >> (2 * plane)) & 3, d * (scales & 15).to(tl.float32)) - minimum[:, None]


@jit
def q3_k(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane, Plane, Plane]:
    d = half(blocks, 108, inside)
    q = eight(blocks, 32 + cell * 8, lane, inside)
    high = eight(blocks, cell % 4 * 8, lane, inside) >> (cell // 4 * 4)[:, None]
    return (
        _q3_k_plane(q, high, 0, blocks, cell, d, inside),
        _q3_k_plane(q, high, 1, blocks, cell, d, inside),
        _q3_k_plane(q, high, 2, blocks, cell, d, inside),
        _q3_k_plane(q, high, 3, blocks, cell, d, inside),
    )


@jit
def _q3_k_plane(
    q: Plane, high: Plane, plane: tl.constexpr, blocks: Pointers, cell: Cells, d: Cells, inside: Mask
) -> Plane:
    sub_block = _sub_block(cell, plane)
    low = byte(blocks, 96 + sub_block % 8, inside) >> (sub_block // 8 * 4)
    upper = byte(blocks, 104 + sub_block % 4, inside) >> (sub_block // 4 * 2)
    scale = ((low & 15) | ((upper & 3) << 4)) - 32
    values = ((q >> (2 * plane)) & 3) | (((high >> plane) & 1) << 2)
    return times(values - 4, d * scale.to(tl.float32))


@jit
def q4_k(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane]:
    q = eight(blocks, 16 + cell * 8, lane, inside)
    first, second = _scaled(q & 15, q >> 4, blocks, cell, inside)
    return first, second


@jit
def q5_k(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane]:
    q = eight(blocks, 48 + cell * 8, lane, inside)
    high = eight(blocks, 16 + cell % 4 * 8, lane, inside) >> (cell // 4 * 2)[:, None]
    first, second = _scaled((q & 15) | ((high & 1) << 4), (q >> 4) | ((high & 2) << 3), blocks, cell, inside)
    return first, second


@jit
def q6_k(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane, Plane, Plane]:
    d = half(blocks, 208, inside)
    column = cell // 4 * 64 + cell % 4 * 8
    even, odd = eight(blocks, column, lane, inside), eight(blocks, column + 32, lane, inside)
    high = eight(blocks, 128 + cell * 8, lane, inside)
    return (
        _q6_k_plane(even & 15, high, 0, blocks, cell, d, inside),
        _q6_k_plane(odd & 15, high, 1, blocks, cell, d, inside),
        _q6_k_plane(even >> 4, high, 2, blocks, cell, d, inside),
        _q6_k_plane(odd >> 4, high, 3, blocks, cell, d, inside),
    )


@jit
def _q6_k_plane(
    low: Plane, high: Plane, plane: tl.constexpr, blocks: Pointers, cell: Cells, d: Cells, inside: Mask
) -> Plane:
    scale = byte(blocks, 192 + _sub_block(cell, plane), inside).to(tl.int8)
    values = low | (((high >> (2 * plane)) & 3) << 4)
    return times(values - 32, d * scale.to(tl.float32))


@jit
def _sub_block(cell: Cells, plane: tl.constexpr) -> Cells:
    """Which 16 weights of the block, with four planes."""
    return cell // 4 * 8 + 2 * plane + cell % 4 // 2


@jit
def _scaled(first: Plane, second: Plane, blocks: Pointers, cell: Cells, inside: Mask) -> tuple[Plane, Plane]:
    """Two planes, each a sub-block of 32, by the 6-bit scales and minima that Q4_K and Q5_K share."""
    d, d_min = half(blocks, 0, inside), half(blocks, 2, inside)
    scales, minima, low = word(blocks, 4, inside), word(blocks, 8, inside), word(blocks, 12, inside)
    return (
        _scaled_plane(first, cell // 4 * 2, d, d_min, scales, minima, low),
        _scaled_plane(second, cell // 4 * 2 + 1, d, d_min, scales, minima, low),
    )


@jit
def _scaled_plane(
    q: Plane, sub_block: Cells, d: Cells, d_min: Cells, scales: Cells, minima: Cells, low: Cells
) -> Plane:
    """The layout of the three words is described at `k_quants.scales_and_minima`."""
    shift = sub_block % 4 * 8
    scales, minima, low = scales >> shift, minima >> shift, low >> shift
    scale = tl.where(sub_block < 4, scales & 63, (low & 15) | ((scales >> 2) & 48))
    minimum = tl.where(sub_block < 4, minima & 63, ((low >> 4) & 15) | ((minima >> 2) & 48))
    return times(q, d * scale.to(tl.float32)) - (d_min * minimum.to(tl.float32))[:, None]
