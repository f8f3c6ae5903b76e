"""How far products are from what they should be."""

from __future__ import annotations

import torch


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """The L2 norm of the difference, as a share of what is wanted."""
    return float((got.float() - want).norm() / want.norm())
