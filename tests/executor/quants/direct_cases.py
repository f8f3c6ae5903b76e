"""What products straight from stored bytes are checked with: matrices of every type, and float64 products."""

from __future__ import annotations

import torch

from executor.quants import QUANTS, fill_random, row_bytes
from executor.quants.stored import Stored
from tests.executor.quants.dequant_cases import expected

LARGEST_ERROR = 1e-3  # relative, against a float64 product
INTEGER_TYPES = [quant for quant in QUANTS if quant not in ("F32", "F16", "BF16")]


def matrix(quant: str, *shape: int, seed: int) -> torch.Tensor:
    """Bytes (…, n_rows, row_bytes) of random weights, as presets have them."""
    raw = torch.empty((*shape[:-1], row_bytes(quant, shape[-1])), dtype=torch.uint8)
    fill_random(raw.view(-1), quant, 0.05, seed)
    return raw


def product(x: torch.Tensor, raw: torch.Tensor, quant: str) -> torch.Tensor:
    """x (…, in) by gguf's weights of `raw`, in float64 on the CPU."""
    return x.cpu().double() @ expected(raw, quant, torch.float32).double().transpose(-1, -2)


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Of all numbers together, relative."""
    return float((got.cpu().double() - wanted).norm() / wanted.norm())


def on(device: torch.device | str, raw: torch.Tensor, layout: str) -> Stored:
    """The bytes there, kept strides and all."""
    base = raw.as_strided((raw.untyped_storage().nbytes(),), (1,), 0).to(device)
    return Stored(base.as_strided(raw.shape, raw.stride(), raw.storage_offset()), layout)
