"""Quant types whose 32 weights in a row share a scale and a minimum, as 4-bit codes: w = (code - 8) * scale + zero.

Codes are centred because a scale that is rounded then moves a weight by at most 8 roundings of it, and a symmetric
type's zero is exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch

from executor.quants import quant_type
from executor.quants.bits import bit_planes, f16, nibbles
from executor.quants.k_quants import scales_and_minima

GROUP: Final = 32
_CENTRE: Final = 8


class Affine(NamedTuple):
    """Rows of weights: `codes` (n, k) uint8, `scale` and `zero` (n, k / 32) float32."""

    codes: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor


def is_affine(quant: str) -> bool:
    """Whether `unpack_affine` knows the type."""
    return quant in _UNPACK


def unpack_affine(raw: torch.Tensor, quant: str) -> Affine:
    """Rows as they are stored, (n, row_bytes) uint8, as codes, scales and zeros."""
    codes, scale, zero = _UNPACK[quant](raw.unflatten(-1, (-1, quant_type(quant).block_bytes)))
    return Affine(codes.flatten(1), scale.flatten(1), zero.flatten(1))


def _q4_0(blocks: torch.Tensor) -> Affine:
    d, q = blocks.split((2, 16), dim=-1)
    scale = f16(d)
    return Affine(nibbles(q), scale, torch.zeros_like(scale))


def _q4_1(blocks: torch.Tensor) -> Affine:
    d, m, q = blocks.split((2, 2, 16), dim=-1)
    scale = f16(d)
    return Affine(nibbles(q), scale, f16(m).add_(scale, alpha=_CENTRE))


def _q4_k(blocks: torch.Tensor) -> Affine:
    d, d_min, packed, q = blocks.split((2, 2, 12, 128), dim=-1)
    scales, minima = scales_and_minima(packed)
    scale = f16(d) * scales
    codes = bit_planes(q.unflatten(-1, (4, 32)), 4).flatten(-3)
    return Affine(codes, scale, (f16(d_min) * minima).neg_().add_(scale, alpha=_CENTRE))


_UNPACK: Final[dict[str, Callable[[torch.Tensor], Affine]]] = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k}
