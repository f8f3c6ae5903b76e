"""Root-mean-square norm, the only norm these architectures use."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight over the last dimension (any leading shape)."""
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)
