"""Decoders of `executor.quants.k_quants`' types: super-blocks of 256 weights, 32 chunks (see `fused_legacy`).

Chunk c is in sub-block c // 4 of 32 weights, or c // 2 of 16, and in half c // 16 of its super-block.
"""

from __future__ import annotations

from triton import jit
from triton import language as tl

from executor.quants.fused_loads import Chunks, Lanes, Mask, Pointers, Weights, bits, byte, eight, half, times


@jit
def q2_k(blocks: Pointers, chunk: Chunks, lane: Lanes, inside: Mask) -> Weights:
    q = _two_bits(blocks, 16, chunk, lane, inside)
    scales = byte(blocks, chunk // 2, inside)
    scale = half(blocks, 80, inside) * (scales & 15).to(tl.float32)
    minimum = half(blocks, 82, inside) * (scales >> 4).to(tl.float32)
    return times(q, scale) - minimum[:, None]


@jit
def q3_k(blocks: Pointers, chunk: Chunks, lane: Lanes, inside: Mask) -> Weights:
    high = bits(eight(blocks, chunk % 4 * 8, lane, inside), chunk // 4, 1)
    q = _two_bits(blocks, 32, chunk, lane, inside) | (high << 2)
    sub_block = chunk // 2
    low = (byte(blocks, 96 + sub_block % 8, inside) >> (sub_block // 8 * 4)) & 15
    upper = (byte(blocks, 104 + sub_block % 4, inside) >> (sub_block // 4 * 2)) & 3
    scale = (low | (upper << 4)) - 32
    return times(q - 4, half(blocks, 108, inside) * scale.to(tl.float32))


@jit
def q4_k(blocks: Pointers, chunk: Chunks, lane: Lanes, inside: Mask) -> Weights:
    scale, minimum = _scale_and_minimum(blocks, chunk, inside)
    return times(_nibbles(blocks, 16, chunk, lane, inside), scale) - minimum[:, None]


@jit
def q5_k(blocks: Pointers, chunk: Chunks, lane: Lanes, inside: Mask) -> Weights:
    high = bits(eight(blocks, 16 + chunk % 4 * 8, lane, inside), chunk // 4, 1)
    q = _nibbles(blocks, 48, chunk, lane, inside) | (high << 4)
    scale, minimum = _scale_and_minimum(blocks, chunk, inside)
    return times(q, scale) - minimum[:, None]


@jit
def q6_k(blocks: Pointers, chunk: Chunks, lane: Lanes, inside: Mask) -> Weights:
    low = bits(eight(blocks, chunk // 16 * 64 + chunk % 8 * 8, lane, inside), chunk // 8 % 2 * 4, 4)
    upper = bits(eight(blocks, 128 + chunk // 16 * 32 + chunk % 4 * 8, lane, inside), chunk // 4 % 4 * 2, 2)
    scale = (byte(blocks, 192 + chunk // 2, inside) << 24) >> 24
    return times((low | (upper << 4)) - 32, half(blocks, 208, inside) * scale.to(tl.float32))


@jit
def _two_bits(blocks: Pointers, offset: Chunks, chunk: Chunks, lane: Lanes, inside: Mask) -> Weights:
    """32 bytes hold 128 weights in four planes."""
    return bits(eight(blocks, offset + chunk // 16 * 32 + chunk % 4 * 8, lane, inside), chunk // 4 % 4 * 2, 2)


@jit
def _nibbles(blocks: Pointers, offset: Chunks, chunk: Chunks, lane: Lanes, inside: Mask) -> Weights:
    """32 bytes hold 64 weights in two planes."""
    return bits(eight(blocks, offset + chunk // 8 * 32 + chunk % 4 * 8, lane, inside), chunk // 4 % 2 * 4, 4)


@jit
def _scale_and_minimum(blocks: Pointers, chunk: Chunks, inside: Mask) -> tuple[Chunks, Chunks]:
    """d times the sub-block's scale and d_min times its minimum, of 6 bits each (`k_quants._scales_and_minima`)."""
    sub_block = chunk // 4
    column = sub_block % 4
    first = byte(blocks, 4 + column, inside)
    second = byte(blocks, 8 + column, inside)
    low = byte(blocks, 12 + column, inside)
    scale = tl.where(sub_block < 4, first & 63, (low & 15) | ((first >> 2) & 48))
    minimum = tl.where(sub_block < 4, second & 63, (low >> 4) | ((second >> 2) & 48))
    return half(blocks, 0, inside) * scale.to(tl.float32), half(blocks, 2, inside) * minimum.to(tl.float32)
