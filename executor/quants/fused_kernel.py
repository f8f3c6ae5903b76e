"""The one kernel of all types: a program decodes some tiles of one expert, if that expert is used."""

from __future__ import annotations

from triton import jit
from triton import language as tl


@jit(do_not_specialize=["flags", "place_of", "n_cells"])
def unpack_stack(
    raw: tl.tensor,
    out: tl.tensor,
    flags: tl.tensor,
    place_of: tl.tensor,
    stride: tl.tensor,
    n_cells: tl.tensor,
    DECODE: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    BLOCK_CELLS: tl.constexpr,
    PLANES: tl.constexpr,
    PLANE_STRIDE: tl.constexpr,
    TILE_CELLS: tl.constexpr,
    TILES: tl.constexpr,
) -> None:
    """Expert e's bytes lie at raw + place * stride, its weights go to out + e * 8 * PLANES * n_cells.

    `flags` None: every expert is used; `place_of` None: expert e lies at place e. The rest is `fused_formats.Format`.
    """
    expert = tl.program_id(1)
    place = expert
    if place_of is not None:
        place = tl.load(place_of + expert)
    if flags is not None:  # noqa: SIM102 - decided when compiling, the inner one when running
        if tl.load(flags + expert) == 0:
            return
    # 64-bit: a stack can hold more than 2 ** 31 weights
    expert_raw = raw + place.to(tl.int64) * stride
    expert_out = out + expert.to(tl.int64) * n_cells * (8 * PLANES)
    for step in range(TILES):
        tile = tl.program_id(0) * TILES + step
        _unpack_tile(
            expert_raw, expert_out, n_cells, tile,
            DECODE, BLOCK_BYTES, BLOCK_CELLS, PLANES, PLANE_STRIDE, TILE_CELLS,
        )  # fmt: skip


@jit
def _unpack_tile(
    raw: tl.tensor,
    out: tl.tensor,
    n_cells: tl.tensor,
    tile: tl.tensor,
    DECODE: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    BLOCK_CELLS: tl.constexpr,
    PLANES: tl.constexpr,
    PLANE_STRIDE: tl.constexpr,
    TILE_CELLS: tl.constexpr,
) -> None:
    cell = tl.arange(0, TILE_CELLS)
    lane = tl.arange(0, 8)
    inside = cell < n_cells - tile * TILE_CELLS
    first_byte = tile.to(tl.int64) * (TILE_CELLS // BLOCK_CELLS * BLOCK_BYTES)
    first_weight = tile.to(tl.int64) * (TILE_CELLS * 8 * PLANES)
    blocks = raw + first_byte + cell // BLOCK_CELLS * BLOCK_BYTES
    planes = DECODE(blocks, cell % BLOCK_CELLS, lane, inside)
    ROW_CELLS: tl.constexpr = PLANE_STRIDE // 8  # as many neighbouring cells interleave their planes
    weights = out + first_weight + cell // ROW_CELLS * (PLANE_STRIDE * PLANES) + cell % ROW_CELLS * 8
    for plane in tl.static_range(PLANES):
        targets = (weights + plane * PLANE_STRIDE)[:, None] + lane[None, :]
        tl.store(targets, planes[plane].to(out.dtype.element_ty), mask=inside[:, None])
