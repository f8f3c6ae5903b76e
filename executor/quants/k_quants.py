"""K types: super-blocks of 256 weights in sub-blocks of 16 or 32, whose small integer scales share a float16 d.

Each function takes (..., block_bytes) bytes and returns (..., 256) float32, in the order of operations of ggml's
reference. Quants are stored in planes: byte i of a 32-byte group holds weights i, i + 32, i + 64, ...
"""

from __future__ import annotations

import torch

from executor.quants.bits import bit_planes, f16


def q2_k(blocks: torch.Tensor) -> torch.Tensor:
    """scales(16: low nibble scale, high nibble minimum) q(64, 2 bits) d(2) d_min(2)."""
    scales, q, d, d_min = blocks.split((16, 64, 2, 2), dim=-1)
    values = bit_planes(q.unflatten(-1, (2, 32)), 2).float()
    scale, minimum = f16(d) * (scales & 15), f16(d_min) * (scales >> 4)
    return _scaled(values, 16, scale).sub_(minimum.unsqueeze(-1)).flatten(-2)


def q3_k(blocks: torch.Tensor) -> torch.Tensor:
    """high(32: plane j holds the third bit of 32 weights; 0 means minus 4) q(64, 2 bits) scales(12) d(2)."""
    high, q, scales, d = blocks.split((32, 64, 12, 2), dim=-1)
    low = bit_planes(q.unflatten(-1, (2, 32)), 2).flatten(-3, -2)
    values = low.bitwise_or_(bit_planes(high, 1).bitwise_left_shift_(2)).float().sub_(4)
    return _scaled(values, 16, f16(d) * _q3_k_scales(scales)).flatten(-2)


def q4_k(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) d_min(2) scales(12) q(128, 4 bits)."""
    d, d_min, scales, q = blocks.split((2, 2, 12, 128), dim=-1)
    values = bit_planes(q.unflatten(-1, (4, 32)), 4).float()
    scale, minimum = scales_and_minima(scales)
    return _scaled(values, 32, f16(d) * scale).sub_((f16(d_min) * minimum).unsqueeze(-1)).flatten(-2)


def q5_k(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) d_min(2) scales(12) high(32: plane j holds sub-block j's fifth bits) q(128, 4 bits)."""
    d, d_min, scales, high, q = blocks.split((2, 2, 12, 32, 128), dim=-1)
    low = bit_planes(q.unflatten(-1, (4, 32)), 4).flatten(-3, -2)
    values = low.bitwise_or_(bit_planes(high, 1).bitwise_left_shift_(4)).float()
    scale, minimum = scales_and_minima(scales)
    return _scaled(values, 32, f16(d) * scale).sub_((f16(d_min) * minimum).unsqueeze(-1)).flatten(-2)


def q6_k(blocks: torch.Tensor) -> torch.Tensor:
    """q(128, low 4 bits) high(64, upper 2 bits) scales(16, signed) d(2); 32 means zero."""
    q, high, scales, d = blocks.split((128, 64, 16, 2), dim=-1)
    low = bit_planes(q.unflatten(-1, (2, 64)), 4)
    upper = bit_planes(high.unflatten(-1, (2, 32)), 2)
    values = low.view(upper.shape).bitwise_or_(upper.bitwise_left_shift_(4)).float().sub_(32)
    return _scaled(values, 16, f16(d) * scales.view(torch.int8)).flatten(-2)


def _scaled(values: torch.Tensor, sub_block: int, scale: torch.Tensor) -> torch.Tensor:
    """256 values a block, however grouped, as (..., 256 // sub_block, sub_block) times one scale a sub-block."""
    return values.view(*scale.shape, sub_block).mul_(scale.unsqueeze(-1))


def scales_and_minima(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """12 bytes to 8 scales and 8 minima of 6 bits.

    Byte j < 4 holds scale j and on top two bits of scale j + 4; byte 4 + j the same of the minima;
    byte 8 + j the low nibbles of scale j + 4 (low) and minimum j + 4 (high).
    """
    first, second, low = packed.split(4, dim=-1)
    scales = torch.cat((first & 63, (low & 15) | ((first >> 2) & 48)), dim=-1)
    minima = torch.cat((second & 63, (low >> 4) | ((second >> 2) & 48)), dim=-1)
    return scales, minima


def _q3_k_scales(packed: torch.Tensor) -> torch.Tensor:
    """12 bytes to 16 signed scales: 8 bytes hold low nibbles in two planes, 4 bytes the upper two bits in four."""
    low, upper = packed.split((8, 4), dim=-1)
    joined = bit_planes(low, 4).flatten(-2) | (bit_planes(upper, 2).flatten(-2) << 4)
    return joined.view(torch.int8) - 32
