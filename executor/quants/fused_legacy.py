"""Decoders of `executor.quants.legacy`'s types for the fused kernels: blocks of 32 weights, 4 chunks.
"""

from __future__ import annotations

from triton import jit
from triton import language as tl

from executor.quants.fused_loads import Chunks, Lanes, Mask, Pointers, Weights, bits, byte, eight, half, times

@jit
def number(q, ZERO: tl.constexpr):
    return (q | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + ZERO)

@jit
def q4_0(blocks: Pointers, chunk: Chunks, lane: Lanes, inside: Mask) -> Weights:
    q = bits(eight(blocks, 2 + chunk % 2 * 8, lane, inside), chunk // 2 * 4, 4)
    return number(q, 8) * half(blocks, 0, inside)[:, None]

@jit
def q4_0b(blocks: Pointers, chunk: Chunks, lane: Lanes, inside: Mask) -> Weights:
    offset=2+chunk%2*8
    q = tl.load((blocks + offset)[:, None] + lane[None, :], mask=inside[:, None])
    high = chunk // 2 > 0
    q = tl.where(high[:,None], q>>4, q & 15).to(tl.int32)
    return number(q, 8) * half(blocks, 0, inside)[:, None]

@jit
def q4_0c(blocks: Pointers, chunk: Chunks, lane: Lanes, inside: Mask) -> Weights:
    offset=2+chunk%2*8
    q = tl.load((blocks + offset)[:, None] + lane[None, :], mask=inside[:, None])
    q = (q >> (chunk//2*4).to(tl.uint8)[:,None]) & 15
    return number(q.to(tl.int32), 8) * half(blocks, 0, inside)[:, None]

@jit
def q4_0d(blocks: Pointers, chunk: Chunks, lane: Lanes, inside: Mask) -> Weights:
    """mask in place, scale by power of two instead of shift: high nibble n*16 -> scale d/16"""
    offset=2+chunk%2*8
    q = tl.load((blocks + offset)[:, None] + lane[None, :], mask=inside[:, None]).to(tl.int32)
    high = chunk // 2
    mask = 15 << (high * 4)
    # float with exponent such that the nibble's unit is 1: 2**23 or 2**19
    magic = 0x4B000000 - (high << 25)
    zero = tl.where(high > 0, 524288.0+8, 8388608.0+8)
    x = ((q & mask[:, None]) | magic[:, None]).to(tl.float32, bitcast=True) - zero[:, None]
    return x * half(blocks, 0, inside)[:, None]
