"""Bytes as the file stores them, to numbers: the reference that every faster kernel is checked against."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch

from executor.quants import codebook, k_quants, legacy
from executor.quants.bits import bytes_as
from executor.quants.table import quant_type

# On the CPU a piece of this many weights goes through all steps before the next one does, so that temporaries stay
# below 8 MB and in the cache; a tensor of 64M weights in one go takes 2 to 3 times as long.
_PIECE: Final = 1 << 19

_Unpack = Callable[[torch.Tensor], torch.Tensor]
_UNPACK: Final[dict[str, _Unpack]] = {
    "F32": partial(bytes_as, dtype=torch.float32),
    "F16": partial(bytes_as, dtype=torch.float16),
    "BF16": partial(bytes_as, dtype=torch.bfloat16),
    "Q8_0": legacy.q8_0,
    "Q4_0": legacy.q4_0,
    "Q4_1": legacy.q4_1,
    "Q5_0": legacy.q5_0,
    "Q5_1": legacy.q5_1,
    "Q2_K": k_quants.q2_k,
    "Q3_K": k_quants.q3_k,
    "Q4_K": k_quants.q4_k,
    "Q5_K": k_quants.q5_k,
    "Q6_K": k_quants.q6_k,
    "IQ4_NL": codebook.iq4_nl,
    "IQ4_XS": codebook.iq4_xs,
    "MXFP4": codebook.mxfp4,
}


def dequantise(raw: torch.Tensor, quant: str, dtype: torch.dtype) -> torch.Tensor:
    """The weights in `raw`, computed in float32 as ggml's reference does, then cast once to `dtype`.

    `raw`: uint8 of (..., row_bytes) on any device; the leading dimensions may be strided, the last is contiguous.
    Returns (..., n_cols), contiguous, sharing no memory with `raw`. Never waits for the device.
    """
    kind = quant_type(quant)
    n_cols = raw.shape[-1] // kind.block_bytes * kind.block_size
    out = torch.empty((*raw.shape[:-1], n_cols), dtype=dtype, device=raw.device)
    dequantise_into(out, raw, quant)
    return out


def dequantise_into(out: torch.Tensor, raw: torch.Tensor, quant: str) -> None:
    """`dequantise` into `out` of (..., n_cols), contiguous in its last dimension: a buffer to use again saves more
    time on the CPU than the arithmetic takes.
    """
    kind = quant_type(quant)
    if raw.dtype != torch.uint8 or raw.shape[-1] % kind.block_bytes:
        raise ValueError(
            f"{quant} rows are uint8, a multiple of {kind.block_bytes} long, not {raw.dtype} {tuple(raw.shape)}"
        )
    blocks, values = raw.unflatten(-1, (-1, kind.block_bytes)), out.unflatten(-1, (-1, kind.block_size))
    if raw.device.type == "cpu":
        _fill_in_pieces(values, blocks, _UNPACK[quant])
    else:
        values.copy_(_UNPACK[quant](blocks))


def _fill_in_pieces(values: torch.Tensor, blocks: torch.Tensor, unpack: _Unpack) -> None:
    """Cut along the outermost dimension until a piece is small: strided dimensions cannot be flattened.

    `values`: (..., n_blocks, block_size); `blocks`: (..., n_blocks, block_bytes).
    """
    if values.numel() <= _PIECE:
        values.copy_(unpack(blocks))
    elif n_rows := _PIECE * len(values) // values.numel():
        for piece, source in zip(values.split(n_rows), blocks.split(n_rows), strict=True):
            piece.copy_(unpack(source))
    else:
        for row, source in zip(values, blocks, strict=True):
            _fill_in_pieces(row, source, unpack)
