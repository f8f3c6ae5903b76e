"""A block's first half: norm, token mixer of whatever kind, residual."""

from __future__ import annotations

import torch

from executor.layers.attention import attention
from executor.layers.delta_net import delta_net
from executor.layers.mla import mla
from executor.layers.norm import rms_norm
from executor.layers.one_token import OneToken
from executor.layers.state import AttentionState, DeltaNetState, MixerState, MlaState
from executor.layers.weights import Weights
from executor.shape import AttentionShape, DeltaNetShape, LayerShape, MlaShape


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
    match layer.mixer, state:
        case AttentionShape() as shape, AttentionState():
            return x + attention(h, w, shape, state, n_past if one_token is None else one_token, eps)
        case DeltaNetShape() as shape, DeltaNetState():
            return x + delta_net(h, w, shape, state, n_past, eps)
        case MlaShape() as shape, MlaState():
            return x + mla(h, w, shape, state, n_past, eps)
    raise TypeError(f"no mixer for {type(layer.mixer).__name__} with {type(state).__name__}")
