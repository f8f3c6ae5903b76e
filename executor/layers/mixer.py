"""A block's first half: norm, token mixer, residual.

Here are grouped-query attention and multi-head latent attention (DeepSeek-V2 and later), which keeps one latent
and one rotated key a token. Few tokens are attended in the latents' own space; many have their keys and values
projected first, so that a flash kernel serves them. The gated delta net is in `layers.delta_net`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from executor.layers.attention_kernels import OneToken, attend, attend_one, band_mask, visible
from executor.layers.delta_net import delta_net
from executor.layers.dense import Weights, rms_norm, with_residual
from executor.layers.rope import rotate
from executor.layers.state import AttentionState, DeltaNetState, MixerState, MlaState
from executor.model import AttentionShape, DeltaNetShape, LayerShape, MlaShape

# Projecting all past keys costs 2 (nope + value) rank a head and token, attending in the latents' space
# 2 (2 rank + rope) a query, head and token instead of about 2 (nope + rope + value): up to some tens of tokens
# the second is less work. It holds all logits in memory, hence the low end of that range.
_IN_LATENT_SPACE_UP_TO = 16


def mix(
    x: torch.Tensor,
    w: Weights,
    layer: LayerShape,
    state: MixerState,
    n_past: int,
    eps: float,
    one_token: OneToken | None = None,
) -> torch.Tensor:
    """x (n, hidden) after the mixer and its residual; the state then holds tokens up to n_past + n.

    With `one_token` attention takes the position from the device and not from `n_past`.
    """
    h = rms_norm(x, w("attn_norm.weight"), eps)
    return with_residual(x, _mixed(h, w, layer, state, n_past, eps, one_token), layer.residual_scale)


def _mixed(
    h: torch.Tensor,
    w: Weights,
    layer: LayerShape,
    state: MixerState,
    n_past: int,
    eps: float,
    one_token: OneToken | None,
) -> torch.Tensor:
    match layer.mixer, state:
        case AttentionShape() as shape, AttentionState():
            out = attention(h, w, shape, state, n_past if one_token is None else one_token, eps)
            return rms_norm(out, w("post_attention_norm.weight"), eps) if shape.post_norm else out
        case DeltaNetShape() as shape, DeltaNetState():
            return delta_net(h, w, shape, state, n_past, eps)
        case MlaShape() as shape, MlaState():
            return mla(h, w, shape, state, n_past, eps)
    raise TypeError(f"no mixer for {type(layer.mixer).__name__} with {type(state).__name__}")


def attention(
    h: torch.Tensor, w: Weights, shape: AttentionShape, state: AttentionState, at: int | OneToken, eps: float
) -> torch.Tensor:
    """What attention adds to the residual stream for normed h (n, hidden); keys and values join the state.

    `at`: the number of tokens before these, or one token's place that lies on the device.
    """
    n = h.shape[0]
    q, gate = _gqa_queries(h, w, shape, eps)
    k = _normed(project(h, w, "attn_k").view(n, shape.n_kv_heads, shape.head_dim), "attn_k_norm", w, shape, eps)
    v = project(h, w, "attn_v").view(n, shape.n_kv_heads, shape.head_dim)
    sinks = w("attn_sinks.weight") if shape.sinks else None
    if isinstance(at, OneToken):
        rope = state.rope.at(at.position.index)
        keys, values = state.append_one(rotate(k, rope, 0), v, at)
        out = attend_one(rotate(q, rope, 0), keys, values, at, shape.window, sinks, shape.scale)
    else:
        keys, values = state.append(k, v, at)
        out = attend(rotate(q, state.rope, at), keys, values, shape.window, sinks, shape.scale)
    if gate is not None:
        out = out * torch.sigmoid(gate)
    if shape.head_gate:
        out = out * F.softplus(project(h, w, "attn_gate")).unsqueeze(-1)
    return project(out.flatten(1), w, "attn_output")


def project(h: torch.Tensor, w: Weights, name: str) -> torch.Tensor:
    """h @ weight.T, plus the bias where the model has one."""
    return F.linear(h, w(f"{name}.weight"), w.maybe(f"{name}.bias"))


def _gqa_queries(
    h: torch.Tensor, w: Weights, shape: AttentionShape, eps: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Queries (n, heads, head_dim) before rotation; the gate of the same shape where there is one."""
    q = project(h, w, "attn_q").view(h.shape[0], shape.n_heads, -1)
    gate = None
    if shape.output_gate:  # each head's rows hold its queries, then its gate
        q, gate = q[..., : shape.head_dim], q[..., shape.head_dim :]
    return _normed(q, "attn_q_norm", w, shape, eps), gate


def _normed(x: torch.Tensor, name: str, w: Weights, shape: AttentionShape, eps: float) -> torch.Tensor:
    """Queries or keys (n, heads, head_dim) under the norm of that name, where the model has one."""
    if not shape.qk_norm:
        return x
    weight = w(f"{name}.weight")
    return rms_norm(x.flatten(1), weight, eps).view_as(x) if shape.qk_norm_joint else rms_norm(x, weight, eps)


def mla(h: torch.Tensor, w: Weights, shape: MlaShape, state: MlaState, n_past: int, eps: float) -> torch.Tensor:
    """What the mixer adds to the residual stream for normed h (n, hidden); the latents join the state."""
    n = h.shape[0]
    q = _mla_queries(h, w, shape, eps).view(n, shape.n_heads, -1)
    q_nope, q_rope = q[..., : shape.nope_dim], rotate(q[..., shape.nope_dim :], state.rope, n_past)
    latent, key = project(h, w, "attn_kv_a_mqa").split([shape.kv_lora_rank, shape.rope.dims], dim=-1)
    past = state.append(rms_norm(latent, w("attn_kv_a_norm.weight"), eps), key, n_past)
    latents, keys = visible(past, n, shape.window).split([shape.kv_lora_rank, shape.rope.dims], dim=-1)
    form = attend_in_latent_space if n <= _IN_LATENT_SPACE_UP_TO else attend_projected
    out = form(q_nope, q_rope, latents, keys, w("attn_k_b.weight"), w("attn_v_b.weight"), shape.window)
    return project(out.flatten(1), w, "attn_output")


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
) -> torch.Tensor:
    """Output (n, heads, value_dim) of queries (n, heads, nope) and (n, heads, rope) at the last n of total positions.

    latents (total, rank), keys (total, rope); k_b (heads, rank, nope), v_b (heads, value_dim, rank).
    """
    n, total = q_nope.shape[0], latents.shape[0]
    scale = (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5
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
) -> torch.Tensor:
    """The same, with each head's keys and values projected out of the latents."""
    total, heads = latents.shape[0], q_nope.shape[1]
    k_nope = torch.matmul(latents, k_b).transpose(0, 1)
    values = torch.matmul(latents, v_b.transpose(1, 2)).transpose(0, 1)
    q = torch.cat([q_nope, q_rope], dim=-1)
    k = torch.cat([k_nope, keys.unsqueeze(1).expand(total, heads, -1)], dim=-1)
    width = max(q.shape[-1], values.shape[-1])
    scale = q.shape[-1] ** -0.5
    out = attend(_padded(q, width), _padded(k, width), _padded(values, width), window, scale=scale)
    return out[..., : values.shape[-1]]


def _padded(x: torch.Tensor, width: int) -> torch.Tensor:
    """Zeros to the right: flash kernels want keys and values of one width."""
    return F.pad(x, (0, width - x.shape[-1]))
