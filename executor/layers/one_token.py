"""Attention of one token at a position that kernels read from device memory.

A recorded launch has its position in it, so that each generated token would be recorded by itself. Here one
recording serves all positions below `n_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from executor.layers.attend import flash_serves, joined_sinks, plain_masked

_FEWEST_ROWS = 256


@dataclass(frozen=True, eq=False, slots=True)
class PositionOnDevice:
    """Where a lane's single token stands; filled before its layers run, at fixed addresses."""

    index: torch.Tensor  # (1,) int64: the position
    lengths: torch.Tensor  # (2,) int32: 0, and the number of positions seen, as flash kernels take them
    one: torch.Tensor  # (2,) int32: 0, 1: the same of the queries

    def set(self, position: int) -> None:
        """Launched with each ubatch."""
        self.index.fill_(position)
        self.lengths[1:].fill_(position + 1)


@dataclass(frozen=True, slots=True)
class OneToken:
    """One token at a position on the device, somewhere in the first `n_rows` rows of the cache."""

    position: PositionOnDevice
    n_rows: int


def position_on_device(device: torch.device) -> PositionOnDevice:
    """A position's buffers on a device."""
    index = torch.zeros(1, dtype=torch.int64, device=device)
    return PositionOnDevice(index, *(torch.arange(2, dtype=torch.int32, device=device) for _ in range(2)))


def rows_for(position: int, max_tokens: int) -> int:
    """Rows that a recording for this position is given: the next power of two, so that a context has few of them."""
    return min(max_tokens, max(_FEWEST_ROWS, 1 << position.bit_length()))


def attend_one(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    at: OneToken,
    window: int | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """What `attend` gives for q (1, heads, dim) and the rows up to its position, of keys and values (n_rows, …)."""
    if q.is_cuda and flash_serves(q):
        out, log_sum_exp = _flash_cuda(q, keys, values, at.position, window)
    else:
        out, log_sum_exp = plain_masked(q, keys, values, _mask(at, window))
    return out if sinks is None else joined_sinks(out, log_sum_exp, sinks)


def _flash_cuda(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, at: PositionOnDevice, window: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """FlashAttention 2 for sequences of several lengths: the one sequence's length lies on the device."""
    out, log_sum_exp, *_ = torch.ops.aten._flash_attention_forward(
        q,
        keys,
        values,
        at.one,
        at.lengths,
        1,
        keys.shape[0],
        0.0,
        True,
        False,
        window_size_left=None if window is None else window - 1,
        window_size_right=None if window is None else 0,
    )
    return out, log_sum_exp.transpose(0, 1)


def _mask(at: OneToken, window: int | None) -> torch.Tensor:
    """Additive (1, n_rows), float32: minus infinity for rows after the position or before its window."""
    index = at.position.index
    row = torch.arange(at.n_rows, device=index.device)
    hidden = row > index
    if window is not None:
        hidden |= row <= index - window
    return torch.zeros(1, at.n_rows, device=index.device).masked_fill_(hidden, float("-inf"))
