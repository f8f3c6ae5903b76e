"""Queries that grow with their position, so that attention stays sharp in long contexts (Llama 4)."""

from __future__ import annotations

import torch

from executor.model import TemperatureShape


def tempered(q: torch.Tensor, temperature: TemperatureShape, at: int | torch.Tensor) -> torch.Tensor:
    """Queries (n, heads, dim) times 1 + scale * ln(1 + floor((position + offset) / length)).

    `at` is the first one's position, or (n,) positions on their device.
    """
    first = torch.arange(at, at + q.shape[0], device=q.device) if isinstance(at, int) else at
    periods = ((first.double() + temperature.offset) / temperature.length).floor()
    factor = 1.0 + temperature.scale * torch.log1p(periods)
    return q * factor.to(q.dtype).view(-1, 1, 1)
