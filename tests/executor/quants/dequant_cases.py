"""What every way to dequantise is checked with: random blocks, odd shapes, and gguf's own result as the reference."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
import torch

from executor.quants import QUANTS

_BITS = {2: torch.int16, 4: torch.int32}


def expected(raw: torch.Tensor, quant: str, dtype: torch.dtype) -> torch.Tensor:
    """gguf's float32 weights of `raw` (..., row_bytes), rounded once to `dtype`."""
    with np.errstate(all="ignore"):
        stored = np.ascontiguousarray(raw.cpu().numpy())
        weights = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[quant])
    return torch.from_numpy(np.array(weights)).to(dtype)


def assert_same_weights(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal bits; where NaN is wanted, any NaN."""
    got = got.cpu()
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    assert got.is_contiguous()
    nan, bits = wanted.isnan(), _BITS[wanted.itemsize]
    assert torch.equal(got.isnan(), nan)
    assert torch.equal(got.view(bits)[~nan], wanted.view(bits)[~nan])


def whole_cells(quant: str) -> int:
    """The fewest blocks whose weights fill vectors of 8."""
    return max(8 // QUANTS[quant].block_size, 1)


def rows(quant: str, n_rows: int, n_weights: int, seed: int) -> torch.Tensor:
    """Any bytes at all (n_rows, row_bytes), about `n_weights` weights: subnormal, infinite and NaN scales occur."""
    unit = whole_cells(quant)
    n_blocks = max(n_weights // n_rows // QUANTS[quant].block_size // unit, 1) * unit
    return _bytes((n_rows, n_blocks * QUANTS[quant].block_bytes), seed)


def _bytes(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


@dataclass(frozen=True)
class Stack:
    """An expert stack as the engine holds it: a strided view, a few experts in use, at scattered places."""

    raw: torch.Tensor  # (places, n_rows, row_bytes), with other bytes between places
    flags: torch.Tensor  # (n_experts,) uint8
    place_of: torch.Tensor  # (n_experts,) int32; garbage for unused experts

    def to(self, device: torch.device) -> Stack:
        """The same bytes, strides and all, on `device`."""
        base = self.raw.as_strided((self.raw.stride(0) * len(self.raw),), (1,), 0).to(device)
        raw = base.as_strided(self.raw.shape, self.raw.stride(), self.raw.storage_offset())
        return Stack(raw, self.flags.to(device), self.place_of.to(device))

    def check(self, got: torch.Tensor, quant: str, dtype: torch.dtype, *, placed: bool) -> None:
        """Every used expert holds gguf's weights of its place's bytes."""
        assert len(got) == len(self.flags)
        used = self.flags.nonzero().flatten().tolist()
        assert used
        for expert in used:
            place = int(self.place_of[expert]) if placed else expert
            assert_same_weights(got[expert], expected(self.raw[place], quant, dtype))


def stack(quant: str, n_weights: int, seed: int) -> Stack:
    """5 experts of about `n_weights` weights in 7 places; experts 0 and 3 are not used, and placed nowhere."""
    one = rows(quant, 3, n_weights, seed)
    gap = 4 * QUANTS[quant].block_bytes * whole_cells(quant)
    slab = _bytes((7 * (one.numel() + gap),), seed)
    raw = slab.as_strided((7, *one.shape), (one.numel() + gap, one.shape[1], 1), gap // 2)
    flags = torch.tensor([0, 1, 1, 0, 1], dtype=torch.uint8)
    return Stack(raw, flags, torch.tensor([-9, 6, 0, 99, 3], dtype=torch.int32))
