"""What all block formats are made of: float16 scales, and integers of a few bits inside bytes."""

from __future__ import annotations

import torch


def bytes_as(field: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(..., k * itemsize) bytes as (..., k) little-endian values of `dtype`; works at any byte offset."""
    return field.clone(memory_format=torch.contiguous_format).view(dtype)


def f16(field: torch.Tensor) -> torch.Tensor:
    """(..., 2) bytes to (..., 1): a block's float16 scale, in float32."""
    return bytes_as(field, torch.float16).float()


def bit_planes(packed: torch.Tensor, width: int) -> torch.Tensor:
    """(..., k) bytes to (..., 8 // width, k): plane i holds bits [i * width, (i + 1) * width) of each byte."""
    packed = packed.contiguous()  # every plane reads it: strided reads cost 8 times as much on the CPU
    mask = (1 << width) - 1
    return torch.stack([(packed >> shift) & mask for shift in range(0, 8, width)], dim=-2)


def nibbles(packed: torch.Tensor) -> torch.Tensor:
    """(..., k) bytes to (..., 2k): all low nibbles, then all high ones."""
    return bit_planes(packed, 4).flatten(-2)


def bits_of_word(packed: torch.Tensor) -> torch.Tensor:
    """(..., 4) bytes to (..., 32) int32: the bits of a little-endian word, lowest first."""
    word = bytes_as(packed, torch.int32)
    return (word >> torch.arange(32, dtype=torch.int32, device=packed.device)).bitwise_and_(1)
