"""PyTorch's product with packed 4-bit weights on the CPU, which reads a quarter of what bf16 weights take and more.

`_weight_int4pack_mm_for_cpu` takes groups of 32 weights with a scale and a zero in bf16, and adds up in float32.
How the codes are packed depends on the machine's vector width, so that PyTorch alone knows it.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch

from executor.host.affine import GROUP, is_affine, unpack_affine

BLOCK_ROWS: Final = 64
"""Rows are packed in blocks of up to so many: a cut at a multiple packs as the whole does."""
_ROW_MULTIPLE: Final = 16
_INNER_TILES: Final = 2  # of the CUDA layout; the CPU's ignores it
_TOLERANCE: Final = 0.02


def can_pack(quant: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor (..., out, in) of this type can be multiplied packed, on this machine's PyTorch."""
    return is_affine(quant) and shape[-2] % _ROW_MULTIPLE == 0 and shape[-1] % GROUP == 0 and has_int4()


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
