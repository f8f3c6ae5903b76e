"""Gated delta net (linear attention) as Qwen3-Next and Qwen3.5 have it: projections, short convolution, gated norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from executor.layers.delta_rule import chunked_delta_rule
from executor.layers.norm import rms_norm
from executor.layers.state import DeltaNetState
from executor.layers.weights import Weights
from executor.shape import DeltaNetShape

_L2_EPS = 1e-6  # of the norm of queries and keys; not the model's norm_eps


def delta_net(
    h: torch.Tensor, w: Weights, shape: DeltaNetShape, state: DeltaNetState, n_past: int, eps: float
) -> torch.Tensor:
    """What the mixer adds to the residual stream for normed h (n, hidden); the state takes the tokens in."""
    if n_past == 0:
        state.reset()
    n = h.shape[0]
    q, k, v = _convolved(h, w, shape, state)
    beta = torch.sigmoid(F.linear(h, w("ssm_beta.weight")).float())
    step = F.softplus(F.linear(h, w("ssm_alpha.weight")).float() + w("ssm_dt.bias").float())
    out = chunked_delta_rule(q, k, v, beta, w("ssm_a").float() * step, state.memory).to(h.dtype)
    gate = F.linear(h, w("attn_gate.weight")).view(n, shape.n_value_heads, shape.value_dim)
    out = rms_norm(out, w("ssm_norm.weight"), eps) * F.silu(gate)
    return F.linear(out.flatten(1), w("ssm_out.weight"))


def _convolved(
    h: torch.Tensor, w: Weights, shape: DeltaNetShape, state: DeltaNetState
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and keys (n, value heads, key_dim) and values (n, value heads, value_dim), float32.

    A causal convolution runs over each channel; queries and keys are then normed, and shared by
    n_value_heads / n_key_heads neighbouring value heads.
    """
    n = h.shape[0]
    channels = F.silu(state.convolve(F.linear(h, w("attn_qkv.weight")), w("ssm_conv1d.weight"))).float()
    key_width = shape.n_key_heads * shape.key_dim
    q, k, v = channels.split([key_width, key_width, shape.n_value_heads * shape.value_dim], dim=1)
    group = shape.n_value_heads // shape.n_key_heads
    q, k = (_unit(t.view(n, shape.n_key_heads, shape.key_dim)).repeat_interleave(group, dim=1) for t in (q, k))
    return q * shape.key_dim**-0.5, k, v.view(n, shape.n_value_heads, shape.value_dim)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _L2_EPS)
