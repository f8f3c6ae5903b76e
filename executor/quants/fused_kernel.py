"""The one kernel of all types: a program decodes a tile of one expert, if that expert is used."""

from __future__ import annotations

from triton import jit
from triton import language as tl


@jit(do_not_specialize=["n_chunks"])
def unpack_stack(
    raw: tl.tensor,
    out: tl.tensor,
    flags: tl.tensor,
    place_of: tl.tensor,
    stride: tl.tensor,
    n_chunks: tl.tensor,
    DECODE: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
    TILE_CHUNKS: tl.constexpr,
) -> None:
    """Expert program_id(1)'s bytes lie at raw + place * stride; its weights go to out + 8 * expert * n_chunks.

    `flags` None: all are used; `place_of` None: expert e lies at place e.
    """
    expert = tl.program_id(1)
    place = expert
    if place_of is not None:
        place = tl.load(place_of + expert)
    if flags is not None:
        if tl.load(flags + expert) == 0:  # noqa: SIM102 - the outer condition is known when compiling
            return
    tile = tl.program_id(0)
    chunk = tl.arange(0, TILE_CHUNKS)
    lane = tl.arange(0, 8)
    inside = chunk < n_chunks - tile * TILE_CHUNKS
    # 64-bit from here: a stack can hold more than 2 ** 31 weights
    first = tile.to(tl.int64) * TILE_CHUNKS
    first_byte = tile.to(tl.int64) * (TILE_CHUNKS // BLOCK_CHUNKS * BLOCK_BYTES)
    blocks = raw + place.to(tl.int64) * stride + first_byte + chunk // BLOCK_CHUNKS * BLOCK_BYTES
    values = DECODE(blocks, chunk % BLOCK_CHUNKS, lane, inside)
    target = out + (expert.to(tl.int64) * n_chunks + first) * 8
    tl.store(target + chunk[:, None] * 8 + lane[None, :], values.to(out.dtype.element_ty), mask=inside[:, None])
