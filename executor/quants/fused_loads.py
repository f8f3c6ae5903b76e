"""How the fused kernels read a tile of blocks, and the names of the shapes they compute with.

A chunk is 8 neighbouring weights: 16 bytes of bfloat16, which one thread computes and stores at once. Blocks and
sub-blocks are whole chunks, so a scale is read and unpacked once a chunk. Integers are int32, floats float32.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from triton import jit
from triton import language as tl

CHUNK: Final = 8

Pointers: TypeAlias = tl.tensor  # (chunks,) pointers to the first byte of each chunk's block
Chunks: TypeAlias = tl.tensor  # (chunks,) one number a chunk
Lanes: TypeAlias = tl.tensor  # (8,) 0 to 7
Mask: TypeAlias = tl.tensor  # (chunks,) false behind the tensor's end
Weights: TypeAlias = tl.tensor  # (chunks, 8) one number a weight


@jit
def byte(blocks: Pointers, offset: Chunks, inside: Mask) -> Chunks:
    """The byte `offset` bytes into each block."""
    return tl.load(blocks + offset, mask=inside).to(tl.int32)


@jit
def half(blocks: Pointers, offset: Chunks, inside: Mask) -> Chunks:
    """The float16 at an even address `offset` bytes into each block."""
    return tl.load((blocks + offset).to(tl.pointer_type(tl.float16)), mask=inside).to(tl.float32)


@jit
def eight(blocks: Pointers, offset: Chunks, lane: Lanes, inside: Mask) -> Weights:
    """The 8 bytes from `offset` on."""
    return tl.load((blocks + offset)[:, None] + lane[None, :], mask=inside[:, None]).to(tl.int32)


@jit
def bits(packed: Weights, shift: Chunks, WIDTH: tl.constexpr) -> Weights:
    """`WIDTH` bits of each byte, from bit `shift` of its chunk on."""
    return (packed >> shift[:, None]) & ((1 << WIDTH) - 1)


@jit
def times(values: Weights, scale: Chunks) -> Weights:
    """Integers times their chunk's scale."""
    return values.to(tl.float32) * scale[:, None]
