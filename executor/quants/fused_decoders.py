"""Decoders of every quant type for the fused kernel, and the table of their formats. Needs Triton.

A cell is 8 neighbouring bytes of packed weights, which one thread reads once. A byte holds 1, 2 or 4 weights: its
first weight is in plane 0, and so on. A plane is 8 neighbouring weights, so 16 bytes of bfloat16 in one store. A
decoder takes pointers to blocks, which of its block's cells each cell is, the lanes and the mask; it returns the
cell's planes as (cells, 8) float32. Plane distances: 16 weights in blocks of 32, 32 in K types' blocks of 256.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from gguf import quants
from triton import jit
from triton import language as tl

from executor.quants.relaid import stored_type

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


@jit
def f32(blocks: Pointers, _cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane]:
    return (_eight_of(blocks, lane, inside, tl.float32),)


@jit
def f16(blocks: Pointers, _cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane]:
    return (_eight_of(blocks, lane, inside, tl.float16).to(tl.float32),)


@jit
def bf16(blocks: Pointers, _cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane]:
    """The upper half of a float32's bits."""
    return ((_eight_of(blocks, lane, inside, tl.uint16).to(tl.int32) << 16).to(tl.float32, bitcast=True),)


@jit
def _eight_of(blocks: Pointers, lane: Lanes, inside: Mask, DTYPE: tl.constexpr) -> Plane:
    values = blocks.to(tl.pointer_type(DTYPE))
    return tl.load(values[:, None] + lane[None, :], mask=inside[:, None])


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
def q8_0_by_eight(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane]:
    """Eight blocks' scales, then their weights (`executor.quants.relaid`); so below."""
    return (times(eight(blocks, 16 + cell * 8, lane, inside).to(tl.int8), half(blocks, cell // 4 * 2, inside)),)


@jit
def q4_0_by_eight(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane]:
    d = half(blocks, cell // 2 * 2, inside)
    q = eight(blocks, 16 + cell * 8, lane, inside)
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


def _packed(table: str) -> list[int]:
    """gguf's 16 values, signed bytes, as two int64; the first value is the lowest byte."""
    values = np.array(getattr(quants, table).kvalues, dtype=np.int8)
    return [int(word) for word in values.view("<i8")]


IQ4_NL = tl.constexpr(_packed("IQ4_NL"))
MXFP4 = tl.constexpr(_packed("MXFP4"))


@jit
def iq4_nl(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane]:
    d = half(blocks, 0, inside)
    codes = eight(blocks, 2 + cell * 8, lane, inside)
    return times(_value(codes & 15, IQ4_NL), d), times(_value(codes >> 4, IQ4_NL), d)


@jit
def iq4_xs(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane]:
    sub_block = cell // 2
    low = byte(blocks, 4 + sub_block // 2, inside) >> (sub_block % 2 * 4)
    upper = byte(blocks, 2 + sub_block // 4, inside) >> (sub_block % 4 * 2)
    scale = ((low & 15) | ((upper & 3) << 4)) - 32
    d = half(blocks, 0, inside) * scale.to(tl.float32)
    codes = eight(blocks, 8 + cell * 8, lane, inside)
    return times(_value(codes & 15, IQ4_NL), d), times(_value(codes >> 4, IQ4_NL), d)


@jit
def mxfp4(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane]:
    e = byte(blocks, 0, inside)
    # 2 ** (e - 128) from its bits: the two smallest are subnormal
    d = tl.where(e < 2, (e + 1) << 21, (e - 1) << 23).to(tl.float32, bitcast=True)
    codes = eight(blocks, 1 + cell * 8, lane, inside)
    return times(_value(codes & 15, MXFP4), d), times(_value(codes >> 4, MXFP4), d)


@jit
def _value(codes: Plane, TABLE: tl.constexpr) -> Plane:
    """What 4-bit codes stand for. A shift in a constant takes no memory traffic, as reading a table would."""
    return (tl.where(codes < 8, TABLE[0], TABLE[1]) >> (codes % 8 * 8)).to(tl.int8)


class Format(NamedTuple):
    """Blocks of `block_cells` cells; a cell's planes are `plane_stride` weights apart."""

    decode: Any
    block_bytes: int
    block_cells: int
    planes: int
    plane_stride: int
    alignment: int  # of the blocks' addresses, in bytes


def _format(name: str, decode: object, planes: int, plane_stride: int, alignment: int) -> Format:
    kind = stored_type(name)
    scale_up = max(8 // kind.block_size, 1)  # plain floats: 8 of their blocks of one weight make a cell
    cells = kind.block_size * scale_up // (8 * planes)
    return Format(decode, kind.block_bytes * scale_up, cells, planes, plane_stride, alignment)


FORMATS: Final[dict[str, Format]] = {
    name: _format(name, *how)
    for name, how in {
        "F32": (f32, 1, 8, 4),
        "F16": (f16, 1, 8, 2),
        "BF16": (bf16, 1, 8, 2),
        "Q8_0": (q8_0, 1, 8, 2),
        "Q4_0": (q4_0, 2, 16, 2),
        "Q8_0/8": (q8_0_by_eight, 1, 8, 2),
        "Q4_0/8": (q4_0_by_eight, 2, 16, 2),
        "Q4_1": (q4_1, 2, 16, 2),
        "Q5_0": (q5_0, 2, 16, 2),
        "Q5_1": (q5_1, 2, 16, 2),
        "Q2_K": (q2_k, 4, 32, 2),
        "Q3_K": (q3_k, 4, 32, 2),
        "Q4_K": (q4_k, 2, 32, 4),
        "Q5_K": (q5_k, 2, 32, 4),
        "Q6_K": (q6_k, 4, 32, 2),
        "IQ4_NL": (iq4_nl, 2, 16, 2),
        "IQ4_XS": (iq4_xs, 2, 16, 2),
        "MXFP4": (mxfp4, 2, 16, 1),
    }.items()
}
