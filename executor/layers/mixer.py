"""A block's first half: norm, token mixer, residual.

Here is grouped-query attention; the gated delta net is in `layers.delta_net`, latent attention in `layers.mla`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from executor.layers import one_token as fused
from executor.layers.attention_kernels import OneToken, attend, attend_in_chunks, attend_one
from executor.layers.delta_net import delta_net
from executor.layers.dense import Weights, add_projected, add_residual, project, project_all, rms_norm, with_residual
from executor.layers.mla import mla
from executor.layers.rope import rotate, tempered
from executor.layers.state import AttentionState, DeltaNetState, MixerState, MlaState
from executor.model import AttentionShape, DeltaNetShape, LayerShape, MlaShape


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
    return with_residual(x, mixed(x, w, layer, state, n_past, eps, one_token), layer.residual_scale)


def mixed(
    x: torch.Tensor,
    w: Weights,
    layer: LayerShape,
    state: MixerState,
    n_past: int,
    eps: float,
    one_token: OneToken | None = None,
) -> torch.Tensor:
    """What the mixer adds to x (n, hidden), before `residual_scale`; arguments as of `mix`."""
    h = rms_norm(x, w("attn_norm.weight"), eps)
    match layer.mixer, state:
        case AttentionShape() as shape, AttentionState():
            out = attention(h, w, shape, state, n_past if one_token is None else one_token, eps)
            return rms_norm(out, w("post_attention_norm.weight"), eps) if shape.post_norm else out
        case DeltaNetShape() as shape, DeltaNetState():
            return delta_net(h, w, shape, state, n_past, eps)
        case MlaShape() as shape, MlaState():
            return mla(h, w, shape, state, n_past, eps)
    raise TypeError(f"no mixer for {type(layer.mixer).__name__} with {type(state).__name__}")


def add_mixed(
    x: torch.Tensor,
    w: Weights,
    layer: LayerShape,
    state: MixerState,
    n_past: int,
    eps: float,
    one_token: OneToken | None = None,
) -> None:
    """`mix` in place."""
    match layer.mixer, state:
        case AttentionShape() as shape, AttentionState() if not shape.post_norm:
            at = n_past if one_token is None else one_token
            heads = attended_heads(rms_norm(x, w("attn_norm.weight"), eps), w, shape, state, at, eps)
            add_projected(x, heads, w, "attn_output", layer.residual_scale)
        case _:
            add_residual(x, mixed(x, w, layer, state, n_past, eps, one_token), layer.residual_scale)


def attention(
    h: torch.Tensor, w: Weights, shape: AttentionShape, state: AttentionState, at: int | OneToken, eps: float
) -> torch.Tensor:
    """What attention adds to the residual stream for normed h (n, hidden); keys and values join the state.

    `at`: the number of tokens before these, or one token's place that lies on the device.
    """
    return project(attended_heads(h, w, shape, state, at, eps), w, "attn_output")


def attended_heads(
    h: torch.Tensor, w: Weights, shape: AttentionShape, state: AttentionState, at: int | OneToken, eps: float
) -> torch.Tensor:
    """The same before its output's projection: the heads side by side, (n, heads * head_dim)."""
    n = h.shape[0]
    q, k, v = project_all(h, w, "attn_q", "attn_k", "attn_v")
    q, gate = _queries_and_gate(q.view(n, shape.n_heads, -1), shape)
    k, v = (t.view(n, shape.n_kv_heads, shape.head_dim) for t in (k, v))
    sinks = w("attn_sinks.weight") if shape.sinks else None
    if isinstance(at, OneToken) and fused.attention_serves(q, shape):
        out = fused.attend(q, k, v, _norms(w, shape), sinks, shape, state, at, eps)
    else:
        q, k = _normed(q, "attn_q_norm", w, shape, eps), _normed(k, "attn_k_norm", w, shape, eps)
        out = _attended(q, k, v, sinks, shape, state, at)
    if gate is not None:
        out = out * torch.sigmoid(gate)
    if shape.head_gate:
        out = out * F.softplus(project(h, w, "attn_gate")).unsqueeze(-1)
    return out.flatten(1)


def _attended(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None,
    shape: AttentionShape,
    state: AttentionState,
    at: int | OneToken,
) -> torch.Tensor:
    """The heads' outputs (n, heads, head_dim) of normed q and k, and v; keys and values join the state."""
    if shape.temperature is not None:
        q = tempered(q, shape.temperature, at.position.index if isinstance(at, OneToken) else at)
    if isinstance(at, OneToken):
        rope = state.rope.at(at.position.index)
        keys, values = state.append_one(rotate(k, rope, 0), v, at)
        return attend_one(rotate(q, rope, 0), keys, values, at, shape.window, sinks, shape.scale)
    keys, values = state.append(k, v, at)
    q = rotate(q, state.rope, at)
    if shape.chunk is None:
        return attend(q, keys, values, shape.window, sinks, shape.scale)
    return attend_in_chunks(q, keys, values, shape.chunk)


def _queries_and_gate(q: torch.Tensor, shape: AttentionShape) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Queries (n, heads, head_dim) of what was projected; the gate of the same shape where there is one."""
    if not shape.output_gate:
        return q, None
    return q[..., : shape.head_dim], q[..., shape.head_dim :]  # each head's rows hold its queries, then its gate


def _norms(w: Weights, shape: AttentionShape) -> fused.HeadNorms | None:
    """The norms of queries and keys, head by head; None where there are none."""
    if shape.qk_unit:
        return None, None
    return (w("attn_q_norm.weight"), w("attn_k_norm.weight")) if shape.qk_norm else None


def _normed(x: torch.Tensor, name: str, w: Weights, shape: AttentionShape, eps: float) -> torch.Tensor:
    """Queries or keys (n, heads, head_dim) under the norm of that name, where the model has one.

    One length comes before the rotation here and after it in Llama 4, which is the same: a rotation keeps lengths.
    """
    if shape.qk_unit:
        return F.rms_norm(x, (x.shape[-1],), None, eps)
    if not shape.qk_norm:
        return x
    weight = w(f"{name}.weight")
    return rms_norm(x.flatten(1), weight, eps).view_as(x) if shape.qk_norm_joint else rms_norm(x, weight, eps)
