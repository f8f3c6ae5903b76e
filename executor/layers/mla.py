"""Multi-head latent attention (DeepSeek-V2 and later), which keeps one latent and one rotated key a token.

Few tokens are attended in the latents' own space; many have their keys and values projected first, so that a flash
kernel serves them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from executor.layers.attention_kernels import attend, band_mask, visible
from executor.layers.dense import Weights, project, rms_norm
from executor.layers.rope import rotate, tempered
from executor.layers.state import MlaState
from executor.model import MlaShape

# Projecting all past keys costs 2 (nope + value) rank a head and token, attending in the latents' space
# 2 (2 rank + rope) a query, head and token instead of about 2 (nope + rope + value): up to some tens of tokens
# the second is less work. It holds all logits in memory, hence the low end of that range.
_IN_LATENT_SPACE_UP_TO = 16


def mla(h: torch.Tensor, w: Weights, shape: MlaShape, state: MlaState, n_past: int, eps: float) -> torch.Tensor:
    """What the mixer adds to the residual stream for normed h (n, hidden); the latents join the state."""
    n = h.shape[0]
    q = _mla_queries(h, w, shape, eps).view(n, shape.n_heads, -1)
    if shape.temperature is not None:
        q = tempered(q, shape.temperature, n_past)
    q_nope, q_rope = q[..., : shape.nope_dim], rotate(q[..., shape.nope_dim :], state.rope, n_past)
    latent, key = project(h, w, "attn_kv_a_mqa").split([shape.kv_lora_rank, shape.rope.dims], dim=-1)
    past = state.append(rms_norm(latent, w("attn_kv_a_norm.weight"), eps), key, n_past)
    latents, keys = visible(past, n, shape.window).split([shape.kv_lora_rank, shape.rope.dims], dim=-1)
    form = attend_in_latent_space if n <= _IN_LATENT_SPACE_UP_TO else attend_projected
    out = form(q_nope, q_rope, latents, keys, *_from_latents(w, shape), shape.window, shape.logit_scale)
    return project(out.flatten(1), w, "attn_output")


def _from_latents(w: Weights, shape: MlaShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Each head's matrices between latents and keys (heads, rank, nope) and values (heads, value_dim, rank)."""
    heads, rank = shape.n_heads, shape.kv_lora_rank
    if not shape.joined:  # files leave out a leading 1
        return w("attn_k_b.weight").view(heads, rank, -1), w("attn_v_b.weight").view(heads, -1, rank)
    both = w("attn_kv_b.weight").view(heads, -1, rank)
    return both[:, : shape.nope_dim].transpose(1, 2), both[:, shape.nope_dim :]


def _mla_queries(h: torch.Tensor, w: Weights, shape: MlaShape, eps: float) -> torch.Tensor:
    if shape.q_lora_rank is None:
        return project(h, w, "attn_q")
    return project(rms_norm(project(h, w, "attn_q_a"), w("attn_q_a_norm.weight"), eps), w, "attn_q_b")


def attend_in_latent_space(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    latents: torch.Tensor,
    keys: torch.Tensor,
    k_b: torch.Tensor,
    v_b: torch.Tensor,
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """Output (n, heads, value_dim) of queries (n, heads, nope) and (n, heads, rope) at the last n of total positions.

    latents (total, rank), keys (total, rope); k_b (heads, rank, nope), v_b (heads, value_dim, rank). `scale` is what
    logits are multiplied by.
    """
    n, total = q_nope.shape[0], latents.shape[0]
    q_latent = torch.bmm(q_nope.transpose(0, 1), k_b.transpose(1, 2))
    logits = (q_latent @ latents.T + q_rope.transpose(0, 1) @ keys.T).float() * scale
    weights = (logits + band_mask(n, total, window, logits)).softmax(-1).to(latents.dtype)
    return torch.bmm(weights @ latents, v_b.transpose(1, 2)).transpose(0, 1)


def attend_projected(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    latents: torch.Tensor,
    keys: torch.Tensor,
    k_b: torch.Tensor,
    v_b: torch.Tensor,
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """The same, with each head's keys and values projected out of the latents."""
    total, heads = latents.shape[0], q_nope.shape[1]
    k_nope = torch.matmul(latents, k_b).transpose(0, 1)
    values = torch.matmul(latents, v_b.transpose(1, 2)).transpose(0, 1)
    q = torch.cat([q_nope, q_rope], dim=-1)
    k = torch.cat([k_nope, keys.unsqueeze(1).expand(total, heads, -1)], dim=-1)
    width = max(q.shape[-1], values.shape[-1])
    out = attend(_padded(q, width), _padded(k, width), _padded(values, width), window, scale=scale)
    return out[..., : values.shape[-1]]


def _padded(x: torch.Tensor, width: int) -> torch.Tensor:
    """Zeros to the right: flash kernels want keys and values of one width."""
    return F.pad(x, (0, width - x.shape[-1]))
