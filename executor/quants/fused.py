"""Dequantisation in one pass over memory: a Triton kernel that reads stored bytes and writes finished weights.

Needs Triton, so only `executor.quants.dispatch` imports it, on a machine that has one. Results equal
`executor.quants.dequantise` bit for bit: a product is rounded before it is added to, and the float32 result is
cast once. Launching costs the host little: models do it hundreds of times a token.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final, NamedTuple

import torch
from triton import jit
from triton import language as tl

from executor.quants.fused_decoders import FORMATS
from executor.quants.fused_pieces import Pieces, pieces_of
from executor.quants.relaid import stored_type

# Triton's own search for the compiled kernel costs more than everything else here together.
_COMPILED: Final[dict[tuple[object, ...], Any]] = {}


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


class Tiling(NamedTuple):
    """A program decodes `tiles` tiles of `weights` (a power of two, at least 256), one after the other."""

    weights: int
    warps: int
    tiles: int


def launch(
    raw: torch.Tensor,
    quant: str,
    pieces: Pieces,
    out: torch.Tensor,
    flags: torch.Tensor | None,
    place_of: torch.Tensor | None,
    tiling: Tiling,
) -> None:
    """Decode `pieces` of `raw` into `out` (contiguous, 16-byte aligned), on the current stream of their device."""
    decode, block_bytes, block_cells, planes, plane_stride, _ = FORMATS[quant]
    n_cells = pieces.n_bytes // block_bytes * block_cells
    tile_cells = tiling.weights // (8 * planes)
    layout = (decode, block_bytes, block_cells, planes, plane_stride, tile_cells, tiling.tiles)
    arguments = (raw, out, flags, place_of, pieces.stride, n_cells, *layout)
    grid = (-(-n_cells // (tile_cells * tiling.tiles)), pieces.number, 1)
    key = (quant, tiling, _specialisation(raw, out, flags, place_of, pieces.stride))
    with launching_on(raw.device):
        if (compiled := _COMPILED.get(key)) is not None:
            compiled[grid](*arguments)
        else:
            _COMPILED[key] = unpack_stack[grid](*arguments, num_warps=tiling.warps, enable_fp_fusion=False)


def _specialisation(
    raw: torch.Tensor, out: torch.Tensor, flags: torch.Tensor | None, place_of: torch.Tensor | None, stride: int
) -> tuple[object, ...]:
    """Everything about the arguments that Triton compiles into a kernel: types, and what 16 divides."""
    of_flags = None if flags is None else flags.dtype
    of_places = None if place_of is None else place_of.dtype
    divisible = (raw.data_ptr() % 16 == 0, stride % 16 == 0, stride == 1, stride < 2**31)
    return out.dtype, raw.device, of_flags, of_places, divisible


def launching_on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device. Switching costs microseconds, so only where it is another one."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)


# 32 weights a thread. Where few experts are used, most programs only find that out, so there should not be too many.
# `python -m benchmarks.dequant_cuda --sweep` times the alternatives.
WHOLE: Final = Tiling(weights=4096, warps=4, tiles=1)
EXPERTS: Final = Tiling(weights=4096, warps=4, tiles=4)


def dequantise(raw: torch.Tensor, quant: str, dtype: torch.dtype, tiling: Tiling = WHOLE) -> torch.Tensor | None:
    """`executor.quants.dequantise` in one kernel; None where the kernel cannot read such bytes (`_readable`)."""
    pieces = pieces_of(raw)
    if pieces is None:
        raw = raw.contiguous()
        pieces = Pieces(1, 0, raw.numel())
    if not _readable(raw, quant, pieces):
        return None
    out = _empty(raw, quant, dtype, raw.shape[:-1])
    launch(raw, quant, pieces, out, None, None, tiling)
    return out


def dequantise_experts(
    raw: torch.Tensor,
    quant: str,
    dtype: torch.dtype,
    flags: torch.Tensor,
    place_of: torch.Tensor | None,
    tiling: Tiling = EXPERTS,
) -> torch.Tensor | None:
    """`executor.quants.dispatch.dequantise_experts` in one kernel, which touches used experts only; None as above."""
    return _experts(raw, quant, dtype, flags.numel(), flags, place_of, tiling)


def dequantise_chosen(
    raw: torch.Tensor, quant: str, dtype: torch.dtype, places: torch.Tensor, tiling: Tiling = WHOLE
) -> torch.Tensor | None:
    """`executor.quants.dispatch.dequantise_chosen` in one kernel; None as above."""
    return _experts(raw, quant, dtype, places.numel(), None, places, tiling)


def _experts(
    raw: torch.Tensor,
    quant: str,
    dtype: torch.dtype,
    n: int,
    flags: torch.Tensor | None,
    place_of: torch.Tensor | None,
    tiling: Tiling,
) -> torch.Tensor | None:
    _, n_rows, row_bytes = raw.shape
    if raw.stride()[1:] != (row_bytes, 1):
        raw = raw.contiguous()
    pieces = Pieces(n, raw.stride(0), n_rows * row_bytes)
    if not _readable(raw, quant, pieces):
        return None
    out = _empty(raw, quant, dtype, (n, n_rows))
    launch(raw, quant, pieces, out, flags, place_of, tiling)
    return out


def _readable(raw: torch.Tensor, quant: str, pieces: Pieces) -> bool:
    """Whole blocks at aligned addresses. Files, slots and arenas hold nothing else, but for short float vectors."""
    form = FORMATS[quant]
    whole = raw.shape[-1] % stored_type(quant).block_bytes == 0 and pieces.n_bytes % form.block_bytes == 0
    return raw.dtype == torch.uint8 and whole and (raw.data_ptr() | pieces.stride) % form.alignment == 0


def _empty(raw: torch.Tensor, quant: str, dtype: torch.dtype, leading: tuple[int, ...]) -> torch.Tensor:
    kind = stored_type(quant)
    n_cols = raw.shape[-1] // kind.block_bytes * kind.block_size
    return torch.empty((*leading, n_cols), dtype=dtype, device=raw.device)
