"""A dense block's second half: norm, SwiGLU, residual."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from executor.layers.norm import rms_norm
from executor.layers.weights import Weights

MOST_ROWS = 4096  # rows of n_ff numbers held at once: more gain no speed and cost memory


def dense_ffn(x: torch.Tensor, w: Weights, eps: float) -> torch.Tensor:
    """x (n, hidden) plus down(silu(gate(h)) * up(h)) of the normed h."""
    gate, up, down = w("ffn_gate.weight"), w("ffn_up.weight"), w("ffn_down.weight")
    pieces = [swiglu(rows, gate, up, down) for rows in ffn_norm(x, w, eps).split(MOST_ROWS)]
    return x + (pieces[0] if len(pieces) == 1 else torch.cat(pieces))


def swiglu(h: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """down(silu(gate(h)) * up(h)), (n, hidden)."""
    return F.linear(F.silu(F.linear(h, gate)).mul_(F.linear(h, up)), down)


def ffn_norm(x: torch.Tensor, w: Weights, eps: float) -> torch.Tensor:
    """The norm before the FFN; some architectures' files call it `post_attention_norm`."""
    weight = w.maybe("ffn_norm.weight")
    return rms_norm(x, w("post_attention_norm.weight") if weight is None else weight, eps)
