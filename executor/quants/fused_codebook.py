"""Decoders of `executor.quants.codebook`'s types (see `fused_legacy`); their 16 signed bytes lie in four words."""

from __future__ import annotations

import numpy as np
from gguf import quants
from triton import jit
from triton import language as tl

from executor.quants.fused_loads import Chunks, Lanes, Mask, Pointers, Weights, bits, byte, eight, half, times


def _words(table: str) -> list[int]:
    """gguf's 16 values as four int32, the first value in the lowest byte."""
    values = np.array(getattr(quants, table).kvalues, dtype=np.int8)
    return [int(word) for word in values.view("<i4")]


_IQ4_NL = tl.constexpr(_words("IQ4_NL"))
_MXFP4 = tl.constexpr(_words("MXFP4"))


@jit
def iq4_nl(blocks: Pointers, chunk: Chunks, lane: Lanes, inside: Mask) -> Weights:
    codes = bits(eight(blocks, 2 + chunk % 2 * 8, lane, inside), chunk // 2 * 4, 4)
    return times(_look_up(codes, _IQ4_NL), half(blocks, 0, inside))


@jit
def iq4_xs(blocks: Pointers, chunk: Chunks, lane: Lanes, inside: Mask) -> Weights:
    sub_block = chunk // 4
    codes = bits(eight(blocks, 8 + sub_block * 16 + chunk % 2 * 8, lane, inside), chunk // 2 % 2 * 4, 4)
    low = (byte(blocks, 4 + sub_block // 2, inside) >> (sub_block % 2 * 4)) & 15
    upper = (byte(blocks, 2 + sub_block // 4, inside) >> (sub_block % 4 * 2)) & 3
    scale = (low | (upper << 4)) - 32
    return times(_look_up(codes, _IQ4_NL), half(blocks, 0, inside) * scale.to(tl.float32))


@jit
def mxfp4(blocks: Pointers, chunk: Chunks, lane: Lanes, inside: Mask) -> Weights:
    codes = bits(eight(blocks, 1 + chunk % 2 * 8, lane, inside), chunk // 2 * 4, 4)
    e = byte(blocks, 0, inside)
    # 2 ** (e - 128) from its bits: the two smallest are subnormal
    scale = tl.where(e < 2, (e + 1) << 21, (e - 1) << 23).to(tl.float32, bitcast=True)
    return times(_look_up(codes, _MXFP4), scale)


@jit
def _look_up(codes: Weights, WORDS: tl.constexpr) -> Weights:
    """The signed byte that each 4-bit code stands for. Selecting words beats reading a table: no memory traffic."""
    low = tl.where(codes < 4, WORDS[0], WORDS[1])
    high = tl.where(codes < 12, WORDS[2], WORDS[3])
    word = tl.where(codes < 8, low, high)
    return (word << (24 - codes % 4 * 8)) >> 24
