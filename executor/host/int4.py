"""PyTorch's product with packed 4-bit weights on the CPU, and the quant types that fit it.

A type fits whose 32 weights in a row share a scale and a minimum: w = (code - 8) * scale + zero. Codes are
centred, so that rounding a scale moves a weight by at most 8 roundings and a symmetric type's zero is exactly 0.
How codes are packed depends on the machine's vector width: PyTorch alone knows it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from executor.quants import quant_type
from executor.quants.unpack import bit_planes, f16, nibbles, scales_and_minima

GROUP: Final = 32
_CENTRE: Final = 8
BLOCK_ROWS: Final = 64
"""Rows are packed in blocks of up to so many: a cut at a multiple packs as the whole does."""
_ROW_MULTIPLE: Final = 16
_INNER_TILES: Final = 2  # of the CUDA layout; the CPU's ignores it
_TOLERANCE: Final = 0.02


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


def fits(quant: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor (..., out, in) of this type has a packed form, on a machine whose PyTorch multiplies it."""
    return is_affine(quant) and shape[-2] % _ROW_MULTIPLE == 0 and shape[-1] % GROUP == 0


def can_pack(quant: str, shape: tuple[int, ...]) -> bool:
    """Whether such a tensor can be multiplied packed on this machine."""
    return fits(quant, shape) and has_int4()


def packed_bytes(n_weights: int) -> int:
    """Memory of the packed weights with their scales and zeros: 5 bits a weight."""
    return n_weights // 2 + n_weights // GROUP * 2 * torch.bfloat16.itemsize


def empty_packed(n_places: int, n_rows: int, n_cols: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for packed codes (places, rows, cols / 2) uint8, and scales and zeros (places, cols / 32, rows, 2) bf16."""
    packed = torch.empty((n_places, n_rows, n_cols // 2), dtype=torch.uint8)
    return packed, torch.empty((n_places, n_cols // GROUP, n_rows, 2), dtype=torch.bfloat16)


def pack_into(packed: torch.Tensor, scales: torch.Tensor, raw: torch.Tensor, quant: str) -> None:
    """Pack rows: `raw` (n, row_bytes) into `packed` (n, cols / 2) and `scales` (cols / 32, n, 2)."""
    codes, scale, zero = unpack_affine(raw, quant)
    packed.copy_(_op("_convert_weight_to_int4pack_for_cpu")(codes.int(), _INNER_TILES))
    scales[..., 0].copy_(scale.t())
    scales[..., 1].copy_(zero.t())


def multiply(rows: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """rows (n, cols) bf16, contiguous, times one place's matrix: (n, rows of it) bf16."""
    product: torch.Tensor = _op("_weight_int4pack_mm_for_cpu")(rows, packed, GROUP, scales)
    return product


@functools.cache
def has_int4() -> bool:
    """Whether PyTorch has the operations and they compute what is described here: they are not a public interface."""
    try:
        return _is_right()
    except (AttributeError, RuntimeError, TypeError):
        return False


def _is_right() -> bool:
    raw = torch.arange(2 * BLOCK_ROWS * 18, dtype=torch.int32).mul_(37).to(torch.uint8).view(BLOCK_ROWS, 36)
    raw.view(BLOCK_ROWS, 2, 18)[..., :2] = torch.tensor([0.5], dtype=torch.float16).view(torch.uint8)
    packed, scales = empty_packed(1, BLOCK_ROWS, 2 * GROUP)
    pack_into(packed[0], scales[0], raw, "Q4_0")
    rows = torch.linspace(-1, 1, 2 * GROUP).to(torch.bfloat16).unsqueeze(0)
    codes, scale, _ = unpack_affine(raw, "Q4_0")
    want = (codes.float().view(BLOCK_ROWS, 2, GROUP) - 8).mul_(scale.unsqueeze(-1)).flatten(1) @ rows[0].float()
    return bool((multiply(rows, packed[0], scales[0])[0].float() - want).norm() <= _TOLERANCE * want.norm())


def _op(name: str) -> Any:
    return getattr(torch.ops.aten, name)
