"""Types with one scale a block of 32 weights: d times a 4-, 5- or 8-bit integer (`_0`), plus a minimum m (`_1`).

Each function takes (..., block_bytes) bytes and returns (..., 32) float32. Operations and their order are
those of ggml's reference, which rounds after each one, so results are equal bit for bit.
"""

from __future__ import annotations

import torch

from executor.quants.bits import bits_of_word, f16, nibbles


def q8_0(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) q(32, signed)."""
    d, q = blocks.split((2, 32), dim=-1)
    values: torch.Tensor = q.view(torch.int8).float()
    return values.mul_(f16(d))


def q4_0(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) q(16): weight i is the low nibble of byte i, weight 16 + i the high one; 8 means zero."""
    d, q = blocks.split((2, 16), dim=-1)
    return nibbles(q).float().sub_(8).mul_(f16(d))


def q4_1(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) m(2) q(16)."""
    d, m, q = blocks.split((2, 2, 16), dim=-1)
    return nibbles(q).float().mul_(f16(d)).add_(f16(m))


def q5_0(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) high(4: bit i is weight i's fifth) q(16); 16 means zero."""
    d, high, q = blocks.split((2, 4, 16), dim=-1)
    return _five_bits(q, high).sub_(16).mul_(f16(d))


def q5_1(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) m(2) high(4) q(16)."""
    d, m, high, q = blocks.split((2, 2, 4, 16), dim=-1)
    return _five_bits(q, high).mul_(f16(d)).add_(f16(m))


def _five_bits(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return nibbles(low).float().add_(bits_of_word(high), alpha=16)
