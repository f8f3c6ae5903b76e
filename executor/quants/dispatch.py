"""Stored bytes to numbers, the fastest way a machine has: what the engine calls.

On CUDA, where Triton can compile, one fused kernel reads the bytes and writes the weights (`executor.quants.fused`);
elsewhere PyTorch's operations do (`executor.quants`). Both give the same bits. Neither waits for a CUDA device.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

import torch

from executor.model import TensorInfo
from executor.quants import quant_type, unpack
from executor.quants.stored import Stored
from executor.triton_support import has_triton


def dequantise(raw: torch.Tensor, quant: str, dtype: torch.dtype) -> torch.Tensor:
    """The weights in `raw`, computed in float32 as ggml's reference does and cast once to `dtype`.

    `raw`: uint8 of (..., row_bytes); leading dimensions may be strided, the last is contiguous.
    Returns (..., n_cols), contiguous, never sharing memory with `raw`.
    """
    out = _fused().dequantise(raw, quant, dtype) if raw.is_cuda and has_triton() else None
    return unpack.dequantise(raw, quant, dtype) if out is None else out


def dequantise_experts(
    raw: torch.Tensor, quant: str, dtype: torch.dtype, flags: torch.Tensor, place_of: torch.Tensor | None
) -> torch.Tensor:
    """The weights of the experts in use, as (n_experts, n_rows, n_cols).

    `raw`: uint8 of (places, n_rows, row_bytes), a view of a slot, a bank or a resident stack.
    `flags`: (n_experts,) uint8, 1 where an expert is used; the others' weights may hold anything.
    `place_of`: (n_experts,) int32, which place holds an expert (read for used ones only); None is the identity.
    """
    if not raw.is_cuda:
        return _one_by_one(raw, quant, dtype, flags, place_of)
    out = _fused().dequantise_experts(raw, quant, dtype, flags, place_of) if has_triton() else None
    return _all_at_once(raw, quant, dtype, flags, place_of) if out is None else out


def dequantise_chosen(raw: torch.Tensor, quant: str, dtype: torch.dtype, places: torch.Tensor) -> torch.Tensor:
    """The weights of the experts at `places` (n,) int32 or int64, as (n, n_rows, n_cols); `raw` as above."""
    out = _fused().dequantise_chosen(raw, quant, dtype, places) if raw.is_cuda and has_triton() else None
    return unpack.dequantise(raw.index_select(0, places), quant, dtype) if out is None else out


@functools.cache
def _fused() -> ModuleType:
    return importlib.import_module("executor.quants.fused")


def _one_by_one(
    raw: torch.Tensor, quant: str, dtype: torch.dtype, flags: torch.Tensor, place_of: torch.Tensor | None
) -> torch.Tensor:
    """Reading flags costs nothing on the host, and work is saved."""
    used = flags.nonzero().flatten().tolist()
    places = used if place_of is None else place_of[used].tolist()
    kind = quant_type(quant)
    n_cols = raw.shape[-1] // kind.block_bytes * kind.block_size
    out = torch.empty((len(flags), raw.shape[1], n_cols), dtype=dtype, device=raw.device)
    for expert, place in zip(used, places, strict=True):
        unpack.dequantise_into(out[expert], raw[place], quant)
    return out


def _all_at_once(
    raw: torch.Tensor, quant: str, dtype: torch.dtype, flags: torch.Tensor, place_of: torch.Tensor | None
) -> torch.Tensor:
    """Reading flags would wait for the device, so unused experts are converted too."""
    n_experts = len(flags)
    chosen = raw[:n_experts] if place_of is None else raw.index_select(0, place_of.clamp(0, len(raw) - 1))
    return unpack.dequantise(chosen, quant, dtype)


def is_stored_as(info: TensorInfo, dtype: torch.dtype) -> bool:
    """Whether a tensor's bytes are its numbers in `dtype`, so that nothing has to be dequantised."""
    return unpack.PLAIN_DTYPES.get(info.quant) == dtype


def in_dtype(stored: Stored, info: TensorInfo, dtype: torch.dtype) -> torch.Tensor:
    """Bytes (..., row_bytes) as the tensor in `dtype`; where they are that already, a view of them."""
    if is_stored_as(info, dtype) and stored.raw.storage_offset() % dtype.itemsize == 0:
        return stored.raw.view(dtype).view(info.shape)
    return dequantise(stored.raw, stored.layout, dtype).view(info.shape)


def rows_view(raw: torch.Tensor, info: TensorInfo) -> torch.Tensor:
    """A tensor's bytes (n_bytes,) as (..., row_bytes)."""
    return raw.view(*info.shape[:-1], -1) if len(info.shape) > 1 else raw.view(1, -1)
