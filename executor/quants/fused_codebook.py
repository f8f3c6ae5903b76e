"""Decoders of `executor.quants.codebook`'s types for the fused kernel (see `fused_legacy`)."""

from __future__ import annotations

import numpy as np
from gguf import quants
from triton import jit
from triton import language as tl

from executor.quants.fused_loads import Cells, Lanes, Mask, Plane, Pointers, byte, eight, half, times


def _packed(table: str) -> list[int]:
    """gguf's 16 values, signed bytes, as two int64; the first value is the lowest byte."""
    values = np.array(getattr(quants, table).kvalues, dtype=np.int8)
    return [int(word) for word in values.view("<i8")]


_IQ4_NL = tl.constexpr(_packed("IQ4_NL"))
_MXFP4 = tl.constexpr(_packed("MXFP4"))


@jit
def iq4_nl(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane]:
    d = half(blocks, 0, inside)
    codes = eight(blocks, 2 + cell * 8, lane, inside)
    return times(_value(codes & 15, _IQ4_NL), d), times(_value(codes >> 4, _IQ4_NL), d)


@jit
def iq4_xs(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane]:
    sub_block = cell // 2
    low = byte(blocks, 4 + sub_block // 2, inside) >> (sub_block % 2 * 4)
    upper = byte(blocks, 2 + sub_block // 4, inside) >> (sub_block % 4 * 2)
    scale = ((low & 15) | ((upper & 3) << 4)) - 32
    d = half(blocks, 0, inside) * scale.to(tl.float32)
    codes = eight(blocks, 8 + cell * 8, lane, inside)
    return times(_value(codes & 15, _IQ4_NL), d), times(_value(codes >> 4, _IQ4_NL), d)


@jit
def mxfp4(blocks: Pointers, cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane, Plane]:
    e = byte(blocks, 0, inside)
    # 2 ** (e - 128) from its bits: the two smallest are subnormal
    d = tl.where(e < 2, (e + 1) << 21, (e - 1) << 23).to(tl.float32, bitcast=True)
    codes = eight(blocks, 1 + cell * 8, lane, inside)
    return times(_value(codes & 15, _MXFP4), d), times(_value(codes >> 4, _MXFP4), d)


@jit
def _value(codes: Plane, TABLE: tl.constexpr) -> Plane:
    """What 4-bit codes stand for. A shift in a constant takes no memory traffic, as reading a table would."""
    return (tl.where(codes < 8, TABLE[0], TABLE[1]) >> (codes % 8 * 8)).to(tl.int8)
