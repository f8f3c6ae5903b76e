"""Dequantisation in one pass over memory: a Triton kernel that reads stored bytes and writes finished weights.

Needs Triton, so only `executor.dequant` imports it, on a machine that has one. Results equal
`executor.quants.dequantise` bit for bit: a product is rounded before it is added to (no fused multiply-add), and the
float32 result is cast once.
"""

from __future__ import annotations

import contextlib
from typing import Final, NamedTuple

import torch

from executor.quants.fused_formats import FORMATS, Format
from executor.quants.fused_kernel import unpack_stack
from executor.quants.fused_loads import CHUNK
from executor.quants.table import QUANTS

_MAX_PIECES: Final = 65535  # CUDA's limit for a grid's second dimension


class Tiling(NamedTuple):
    """How many weights (a power of two, at least 256) a program decodes, and with how many warps."""

    weights: int
    warps: int


# 4 chunks a thread keep its 20 to 40 loads in flight; `benchmarks/dequant_cuda.py --sweep` times the alternatives.
TILING: Final = Tiling(4096, 4)


class Pieces(NamedTuple):
    """Bytes as `count` contiguous pieces of `n_bytes`, whose starts are `stride` bytes apart."""

    count: int
    stride: int
    n_bytes: int


def dequantise(raw: torch.Tensor, quant: str, dtype: torch.dtype, tiling: Tiling = TILING) -> torch.Tensor | None:
    """`executor.quants.dequantise` in one kernel; None where the kernel cannot read such bytes (`_readable`)."""
    pieces = _pieces(raw)
    if pieces is None:
        raw = raw.contiguous()
        pieces = Pieces(1, 0, raw.numel())
    if not _readable(raw, quant, pieces):
        return None
    out = _empty(raw, quant, dtype, raw.shape[:-1])
    _launch(raw, quant, pieces, out, None, None, tiling)
    return out


def dequantise_experts(
    raw: torch.Tensor,
    quant: str,
    dtype: torch.dtype,
    flags: torch.Tensor,
    place_of: torch.Tensor | None,
    tiling: Tiling = TILING,
) -> torch.Tensor | None:
    """`executor.dequant.dequantise_experts` in one kernel that reads and writes used experts only; None as above."""
    _, n_rows, row_bytes = raw.shape
    if raw.stride()[1:] != (row_bytes, 1):
        raw = raw.contiguous()
    pieces = Pieces(flags.numel(), raw.stride(0), n_rows * row_bytes)
    if not _readable(raw, quant, pieces):
        return None
    out = _empty(raw, quant, dtype, (pieces.count, n_rows))
    _launch(raw, quant, pieces, out, flags, place_of, tiling)
    return out


def _pieces(raw: torch.Tensor) -> Pieces | None:
    """None where more than one dimension jumps, or too often: such bytes are gathered first."""
    if raw.is_contiguous():
        return Pieces(1, 0, raw.numel())
    count, stride, n_bytes = 1, 0, 1
    for length, step in zip(reversed(raw.shape), reversed(raw.stride()), strict=True):
        if length == 1:
            continue
        if count == 1 and step == n_bytes:
            n_bytes *= length
        elif count == 1:
            count, stride = length, step
        elif step == count * stride:
            count *= length
        else:
            return None
    return Pieces(count, stride, n_bytes) if count <= _MAX_PIECES else None


def _readable(raw: torch.Tensor, quant: str, pieces: Pieces) -> bool:
    """Whole blocks and chunks at aligned addresses. Files, slots and arenas give nothing else but short vectors."""
    block_bytes, alignment = FORMATS[quant].block_bytes, FORMATS[quant].alignment
    whole = raw.shape[-1] % QUANTS[quant].block_bytes == 0 and pieces.n_bytes % block_bytes == 0
    return raw.dtype == torch.uint8 and whole and (raw.data_ptr() | pieces.stride) % alignment == 0


def _empty(raw: torch.Tensor, quant: str, dtype: torch.dtype, leading: tuple[int, ...]) -> torch.Tensor:
    kind = QUANTS[quant]
    n_cols = raw.shape[-1] // kind.block_bytes * kind.block_size
    return torch.empty((*leading, n_cols), dtype=dtype, device=raw.device)


def _launch(
    raw: torch.Tensor,
    quant: str,
    pieces: Pieces,
    out: torch.Tensor,
    flags: torch.Tensor | None,
    place_of: torch.Tensor | None,
    tiling: Tiling,
) -> None:
    decode, block_bytes, block_chunks, _ = FORMATS[quant]
    n_chunks = pieces.n_bytes // block_bytes * block_chunks
    tile_chunks = tiling.weights // CHUNK
    grid = (-(-n_chunks // tile_chunks), pieces.count)
    with _current(raw.device):
        unpack_stack[grid](
            raw, out, flags, place_of, pieces.stride, n_chunks,
            decode, block_bytes, block_chunks, tile_chunks,
            num_warps=tiling.warps, enable_fp_fusion=False,
        )  # fmt: skip


def _current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device. Switching costs microseconds, so only where it is another one."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)
