"""Types whose 4-bit codes index a fixed table of 16 values: IQ4_NL, IQ4_XS and MXFP4.

Each function takes (..., block_bytes) bytes and returns (..., block_size) float32. The tables are gguf's.
"""

from __future__ import annotations

import functools

import torch
from gguf import quants

from executor.quants.bits import bit_planes, f16, nibbles


def iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) q(16)."""
    d, q = blocks.split((2, 16), dim=-1)
    return _look_up("IQ4_NL", nibbles(q)).mul_(f16(d))


def iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) upper(2: two bits of each of 8 scales) low(4: their low nibbles) q(128); scale 32 means zero."""
    d, upper, low, q = blocks.split((2, 2, 4, 128), dim=-1)
    scales = _pairs(low, 4) | (_pairs(upper, 2) << 4)
    sub_blocks = nibbles(q.unflatten(-1, (8, 16)))
    scale = f16(d) * (scales.view(torch.int8) - 32)
    return _look_up("IQ4_NL", sub_blocks).mul_(scale.unsqueeze(-1)).flatten(-2)


def mxfp4(blocks: torch.Tensor) -> torch.Tensor:
    """e(1: a power of two) q(16: e2m1 floats). The table holds doubled values, so the scale is halved."""
    e, q = blocks.split((1, 16), dim=-1)
    return _look_up("MXFP4", nibbles(q)).mul_(_half_power_of_two(e))


def _half_power_of_two(e: torch.Tensor) -> torch.Tensor:
    """2 ** (e - 128) in float32, built from its bits; the two smallest are subnormal."""
    e = e.int()
    return torch.where(e < 2, (e + 1) << 21, (e - 1) << 23).view(torch.float32)


def _pairs(packed: torch.Tensor, width: int) -> torch.Tensor:
    """(..., k) bytes to (..., 8 // width * k): each byte's integers, lowest first, byte after byte."""
    return bit_planes(packed, width).transpose(-1, -2).flatten(-2)


def _look_up(table: str, codes: torch.Tensor) -> torch.Tensor:
    return _values(table, codes.device).index_select(0, codes.flatten().int()).view(codes.shape)


@functools.cache
def _values(table: str, device: torch.device) -> torch.Tensor:
    """Kept a device: making it copies from the host, which must not happen in every call."""
    return torch.tensor(getattr(quants, table).kvalues, dtype=torch.float32, device=device)
