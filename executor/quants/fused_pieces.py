"""Strided bytes as the fused kernel reads them: equal contiguous pieces at equal distances. Needs no Triton."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

_MAX_PIECES: Final = 65535  # CUDA's limit for a grid's second dimension


class Pieces(NamedTuple):
    """Bytes as `number` contiguous pieces of `n_bytes`, whose starts are `stride` bytes apart."""

    number: int
    stride: int
    n_bytes: int


def pieces_of(raw: torch.Tensor) -> Pieces | None:
    """`raw` (uint8, any strides) in its order; None where more than one dimension jumps, or one too often."""
    if raw.is_contiguous():
        return Pieces(1, 0, raw.numel())
    count, stride, n_bytes = 1, 0, 1
    for length, step in zip(reversed(raw.shape), reversed(raw.stride()), strict=True):
        if length == 1:
            continue
        if count == 1 and step == n_bytes:
            n_bytes *= length
        elif count == 1:
            count, stride = length, step
        elif step == count * stride:
            count *= length
        else:
            return None
    return Pieces(count, stride, n_bytes) if count <= _MAX_PIECES else None
