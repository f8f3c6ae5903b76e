"""The gated delta rule in chunks: matrix products inside a chunk, a short recurrence from chunk to chunk.

Token i decays a head's memory S (key_dim, value_dim) by exp(g_i), then writes what k_i should have read:
S <- exp(g_i) S, d_i = beta_i (v_i - S^T k_i), S <- S + k_i d_i^T, o_i = S^T q_i. Unrolled from a chunk's first
memory, with G_i the sum of g up to i, the d of a chunk solve a unit lower triangular system,
d_i + beta_i sum_{j<i} exp(G_i - G_j) (k_i k_j) d_j = beta_i (v_i - exp(G_i) S^T k_i), linear in S: so all chunks are
solved at once, and only S goes from one to the next (Yang et al., arXiv 2412.06464, section 3.3).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

_CHUNK = 128  # longer ones cost more arithmetic a token, shorter ones more launches


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
