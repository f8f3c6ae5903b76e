"""Grouped-query attention's projections, norms and gate, around the kernels of `attend`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from executor.layers.attend import attend
from executor.layers.norm import rms_norm
from executor.layers.one_token import OneToken, attend_one
from executor.layers.rope import rotate
from executor.layers.state import AttentionState
from executor.layers.weights import Weights
from executor.shape import AttentionShape


def attention(
    h: torch.Tensor, w: Weights, shape: AttentionShape, state: AttentionState, at: int | OneToken, eps: float
) -> torch.Tensor:
    """What attention adds to the residual stream for normed h (n, hidden); keys and values join the state.

    `at`: the number of tokens before these, or one token's place that lies on the device.
    """
    n = h.shape[0]
    q, gate = _queries(h, w, shape, eps)
    k = project(h, w, "attn_k").view(n, shape.n_kv_heads, shape.head_dim)
    v = project(h, w, "attn_v").view(n, shape.n_kv_heads, shape.head_dim)
    if shape.qk_norm:
        k = rms_norm(k, w("attn_k_norm.weight"), eps)
    sinks = w("attn_sinks.weight") if shape.sinks else None
    if isinstance(at, OneToken):
        rope = state.rope.at(at.position.index)
        keys, values = state.append_one(rotate(k, rope, 0), v, at)
        out = attend_one(rotate(q, rope, 0), keys, values, at, shape.window, sinks)
    else:
        keys, values = state.append(k, v, at)
        out = attend(rotate(q, state.rope, at), keys, values, shape.window, sinks)
    if gate is not None:
        out = out * torch.sigmoid(gate)
    if shape.head_gate:
        out = out * F.softplus(project(h, w, "attn_gate")).unsqueeze(-1)
    return project(out.flatten(1), w, "attn_output")


def project(h: torch.Tensor, w: Weights, name: str) -> torch.Tensor:
    """h @ weight.T, plus the bias where the model has one."""
    return F.linear(h, w(f"{name}.weight"), w.maybe(f"{name}.bias"))


def _queries(
    h: torch.Tensor, w: Weights, shape: AttentionShape, eps: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Queries (n, heads, head_dim) before rotation; the gate of the same shape where there is one."""
    q = project(h, w, "attn_q").view(h.shape[0], shape.n_heads, -1)
    gate = None
    if shape.output_gate:  # each head's rows hold its queries, then its gate
        q, gate = q[..., : shape.head_dim], q[..., shape.head_dim :]
    if shape.qk_norm:
        q = rms_norm(q, w("attn_q_norm.weight"), eps)
    return q, gate
