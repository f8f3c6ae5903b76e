"""Dequantisation in one pass over memory: a Triton kernel that reads stored bytes and writes finished weights.

Needs Triton, so only `executor.quants.dispatch` imports it, on a machine that has one. Results equal
`executor.quants.dequantise` bit for bit: a product is rounded before it is added to (no fused multiply-add), and the
float32 result is cast once.
"""

from __future__ import annotations

from typing import Final

import torch

from executor.quants.fused_formats import FORMATS
from executor.quants.fused_launch import Tiling, launch
from executor.quants.fused_pieces import Pieces, pieces_of
from executor.quants.table import QUANTS

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
    whole = raw.shape[-1] % QUANTS[quant].block_bytes == 0 and pieces.n_bytes % form.block_bytes == 0
    return raw.dtype == torch.uint8 and whole and (raw.data_ptr() | pieces.stride) % form.alignment == 0


def _empty(raw: torch.Tensor, quant: str, dtype: torch.dtype, leading: tuple[int, ...]) -> torch.Tensor:
    kind = QUANTS[quant]
    n_cols = raw.shape[-1] // kind.block_bytes * kind.block_size
    return torch.empty((*leading, n_cols), dtype=dtype, device=raw.device)
