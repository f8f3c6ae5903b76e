"""A dense block's second half: norm, SwiGLU, residual."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from executor.layers.norm import rms_norm
from executor.layers.weights import Weights


def dense_ffn(x: torch.Tensor, w: Weights, eps: float) -> torch.Tensor:
    """x (n, hidden) plus down(silu(gate(h)) * up(h)) of the normed h."""
    h = ffn_norm(x, w, eps)
    gate = F.silu(F.linear(h, w("ffn_gate.weight")))
    return x + F.linear(gate.mul_(F.linear(h, w("ffn_up.weight"))), w("ffn_down.weight"))


def ffn_norm(x: torch.Tensor, w: Weights, eps: float) -> torch.Tensor:
    """The norm before the FFN; some architectures' files call it `post_attention_norm`."""
    weight = w.maybe("ffn_norm.weight")
    return rms_norm(x, w("post_attention_norm.weight") if weight is None else weight, eps)
