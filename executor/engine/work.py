"""How much work a step is, for the `sim` device: floating-point operations and bytes of device memory."""

from __future__ import annotations

import math
from collections.abc import Iterable

from executor.devices.base import Work
from executor.model import TensorInfo
from executor.shape import AttentionShape, LayerShape, MlaShape, MoeFfn

_WIDE = 2  # bytes of a dequantised weight: written once, read once by the GEMM


def dense_work(tensors: Iterable[TensorInfo], n_tokens: int) -> Work:
    """GEMMs with every matrix: 2 flops a weight and token; each weight is read, dequantised and read again."""
    matrices = [t for t in tensors if len(t.shape) >= 2]
    n_weights = sum(math.prod(t.shape) for t in matrices)
    return Work(2.0 * n_weights * n_tokens, sum(t.n_bytes for t in matrices) + 2.0 * _WIDE * n_weights)


def experts_work(tensors: Iterable[TensorInfo], moe: MoeFfn, n_tokens: int, distinct: int) -> Work:
    """Each token meets `n_used` experts; only the `distinct` experts in use are dequantised."""
    stacks = [t for t in tensors if len(t.shape) == 3]
    weights_each = sum(math.prod(t.shape[1:]) for t in stacks)
    bytes_each = sum(t.n_bytes for t in stacks) / moe.n_experts
    return Work(2.0 * weights_each * n_tokens * moe.n_used, distinct * (bytes_each + 2.0 * _WIDE * weights_each))


def mix_work(layer: LayerShape, tensors: Iterable[TensorInfo], n_tokens: int, n_past: int) -> Work:
    """The projections, plus the attention over what each token sees: 4 flops a head dim, key and query."""
    projections = dense_work(tensors, n_tokens)
    mixer = layer.mixer
    seen = n_past + (n_tokens + 1) / 2
    if isinstance(mixer, AttentionShape):
        seen = min(seen, mixer.window) if mixer.window else seen
        flops = 4.0 * n_tokens * seen * mixer.n_heads * mixer.head_dim
        cache = 2.0 * _WIDE * (seen + n_tokens) * mixer.n_kv_heads * mixer.head_dim
    elif isinstance(mixer, MlaShape):
        flops = 2.0 * n_tokens * seen * mixer.n_heads * (mixer.nope_dim + mixer.rope.dims + mixer.value_dim)
        cache = _WIDE * seen * (mixer.kv_lora_rank + mixer.rope.dims)
    else:  # linear attention: the state is read and written once a token, whatever the depth
        flops = 8.0 * n_tokens * mixer.n_value_heads * mixer.key_dim * mixer.value_dim
        cache = 0.0
    return Work(projections.flops + flops, projections.n_bytes + cache)
