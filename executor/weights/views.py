"""Stored bytes seen as rows, as one expert's matrices, or as numbers of the compute dtype."""

from __future__ import annotations

from typing import Final

import torch

from executor.model import TensorInfo
from executor.quants.dispatch import dequantise
from executor.weights.splits import Part

_STORED_AS: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def is_stored_as(info: TensorInfo, dtype: torch.dtype) -> bool:
    """Whether a tensor's bytes are its numbers in `dtype`, so that nothing has to be dequantised."""
    return _STORED_AS.get(info.quant) == dtype


def in_dtype(raw: torch.Tensor, info: TensorInfo, dtype: torch.dtype) -> torch.Tensor:
    """Bytes (..., row_bytes) as the tensor in `dtype`; where they are that already, a view of them."""
    if is_stored_as(info, dtype) and raw.storage_offset() % dtype.itemsize == 0:
        return raw.view(dtype).view(info.shape)
    return dequantise(raw, info.quant, dtype).view(info.shape)


def rows_view(raw: torch.Tensor, info: TensorInfo) -> torch.Tensor:
    """A tensor's bytes (n_bytes,) as (..., row_bytes)."""
    return raw.view(*info.shape[:-1], -1) if len(info.shape) > 1 else raw.view(1, -1)


def expert_view(buffer: torch.Tensor, part: Part) -> torch.Tensor:
    """One projection of all experts in a slot or bank, as a strided (places, out, row_bytes) view.

    A packed buffer interleaves the projections, so `places` is how often the stride fits behind the offset.
    """
    n_experts, n_rows = part.info.shape[0], part.info.shape[1]
    row_bytes = part.info.n_bytes // (n_experts * n_rows)
    one = n_rows * row_bytes
    places = (buffer.numel() - part.offset - one) // part.stride + 1
    return buffer.as_strided(
        (places, n_rows, row_bytes), (part.stride, row_bytes, 1), buffer.storage_offset() + part.offset
    )
