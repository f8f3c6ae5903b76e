"""Gated delta net (linear attention) as Qwen3-Next and Qwen3.5 have it.

The delta rule runs in chunks. Token i decays a head's memory S by exp(g_i), then writes what k_i should have
read: S <- exp(g_i) S, d_i = beta_i (v_i - S^T k_i), S <- S + k_i d_i^T, o_i = S^T q_i. Inside a chunk the d_i
solve a unit lower triangular system that is linear in S: d_i + beta_i sum_{j<i} exp(G_i - G_j) (k_i k_j) d_j =
beta_i (v_i - exp(G_i) S^T k_i), G the running sum of g. So only S goes from chunk to chunk (arXiv 2412.06464,
section 3.3).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from executor.layers.dense import Weights, linear, rms_norm
from executor.layers.state import DeltaNetState
from executor.model import DeltaNetShape

_CHUNK = 128  # longer ones cost more arithmetic a token, shorter ones more launches


def delta_net(
    h: torch.Tensor, w: Weights, shape: DeltaNetShape, state: DeltaNetState, n_past: int, eps: float
) -> torch.Tensor:
    """What the mixer adds to the residual stream for normed h (n, hidden); the state takes the tokens in."""
    if n_past == 0:
        state.reset()
    inputs, gate = _inputs(h, w, shape)
    q, k, v = _convolved(inputs, w, shape, state, eps)
    beta, alpha = _gates(h, w, shape)
    step = F.softplus(alpha + w("ssm_dt.bias").float())
    out = chunked_delta_rule(q, k, v, beta.sigmoid(), w("ssm_a").float() * step, state.memory).to(h.dtype)
    out = rms_norm(out, w("ssm_norm.weight"), eps) * F.silu(gate.view_as(out))
    return linear(out.flatten(1), w, "ssm_out.weight")[0]


def _inputs(h: torch.Tensor, w: Weights, shape: DeltaNetShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries, keys and values side by side (n, channels), and the output's gate (n, value heads x value_dim)."""
    if not shape.in_one:
        joined, gate = linear(h, w, "attn_qkv.weight", "attn_gate.weight")
        return joined, gate
    values = shape.n_value_heads // shape.n_key_heads * shape.value_dim
    by_key_head = linear(h, w, "ssm_in.weight")[0].view(h.shape[0], shape.n_key_heads, -1)
    *qkv, gate = (t.flatten(1) for t in by_key_head.split([shape.key_dim, shape.key_dim, values, values], dim=-1))
    return torch.cat(qkv, dim=1), gate


def _gates(h: torch.Tensor, w: Weights, shape: DeltaNetShape) -> tuple[torch.Tensor, torch.Tensor]:
    """What decides how much each value head writes (beta) and forgets (alpha), (n, value heads), float32."""
    if not shape.by_key_head:
        beta, alpha = linear(h, w, "ssm_beta.weight", "ssm_alpha.weight")
        return beta.float(), alpha.float()
    both = linear(h, w, "ssm_ba.weight")[0].float().view(h.shape[0], shape.n_key_heads, 2, -1)
    return both[:, :, 0].flatten(1), both[:, :, 1].flatten(1)


def _convolved(
    inputs: torch.Tensor, w: Weights, shape: DeltaNetShape, state: DeltaNetState, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and keys (n, value heads, key_dim) and values (n, value heads, value_dim), float32.

    A causal convolution runs over each channel; queries and keys are then normed, and each of their heads is
    shared by n_value_heads / n_key_heads value heads.
    """
    n = inputs.shape[0]
    channels = F.silu(state.convolve(inputs, w("ssm_conv1d.weight"))).float()
    key_width = shape.n_key_heads * shape.key_dim
    q, k, v = channels.split([key_width, key_width, shape.n_value_heads * shape.value_dim], dim=1)
    group = shape.n_value_heads // shape.n_key_heads
    q, k = (_unit(t.view(n, shape.n_key_heads, shape.key_dim), eps) for t in (q, k))
    if shape.by_key_head:
        q, k = (t.repeat_interleave(group, dim=1) for t in (q, k))
    else:
        q, k = (t.repeat(1, group, 1) for t in (q, k))
    return q * shape.key_dim**-0.5, k, v.view(n, shape.n_value_heads, shape.value_dim)


def _unit(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def chunked_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, g: torch.Tensor, memory: torch.Tensor
) -> torch.Tensor:
    """Outputs (n, heads, value_dim) of n tokens; `memory` (heads, key_dim, value_dim) is advanced in place.

    q and k (n, heads, key_dim), v (n, heads, value_dim), beta and g (n, heads); all float32, g <= 0.
    """
    n = q.shape[0]
    size = min(_CHUNK, n)
    q, k, v, beta, g = (_chunks(t, size) for t in (q, k, v, beta.unsqueeze(-1), g.unsqueeze(-1)))
    total = g.cumsum(-2)
    decay = _decay(total)
    from_start = total.exp()
    system = (beta * k) @ k.transpose(-1, -2) * decay
    written, read = torch.linalg.solve_triangular(
        system.tril(-1), torch.cat([beta * v, beta * from_start * k], dim=-1), upper=False, unitriangular=True
    ).split([v.shape[-1], k.shape[-1]], dim=-1)
    seen = q @ k.transpose(-1, -2) * decay
    to_end = k * (total[..., -1:, :] - total).exp()
    outputs = []
    for i in range(q.shape[0]):
        delta = written[i] - read[i] @ memory
        outputs.append((from_start[i] * q[i]) @ memory + seen[i] @ delta)
        memory.mul_(from_start[i, :, -1:]).add_(to_end[i].transpose(-1, -2) @ delta)
    return torch.stack(outputs).transpose(1, 2).flatten(0, 1)[:n]


def _chunks(x: torch.Tensor, size: int) -> torch.Tensor:
    """(n, heads, width) as (chunks, heads, size, width); zeros fill the last chunk and change nothing."""
    padding = -x.shape[0] % size
    return F.pad(x, (0, 0, 0, 0, 0, padding)).view(-1, size, *x.shape[1:]).transpose(1, 2)


def _decay(total: torch.Tensor) -> torch.Tensor:
    """exp(G_i - G_j) where j <= i, else 0, (..., size, size)."""
    difference = total - total.transpose(-1, -2)
    future = torch.ones(difference.shape[-2:], dtype=torch.bool, device=total.device).triu(1)
    return difference.masked_fill(future, float("-inf")).exp()
