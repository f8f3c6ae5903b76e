"""How much work a step is, for the `sim` device: floating-point operations and bytes of memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch

from executor.devices.base import Work
from executor.model import AttentionShape, LayerShape, MlaShape, MoeFfn, TensorInfo
from executor.quants.dispatch import is_stored_as
from executor.quants.products import are_few

Moved = Callable[[TensorInfo, torch.dtype, int], float]
"""Bytes that a product of so many rows with all of a tensor moves, where activations are in a dtype."""


def device_bytes(tensor: TensorInfo, dtype: torch.dtype, n_rows: int) -> float:
    """Device memory that a product with all of a tensor moves: read as stored, or dequantised before: written, read.

    Told of a GPU with kernels that multiply few rows by stored bytes (`executor.quants.products`).
    """
    n_wide = 0 if is_stored_as(tensor, dtype) or are_few(n_rows, dtype) else math.prod(tensor.shape)
    return tensor.n_bytes + 2.0 * dtype.itemsize * n_wide


def host_bytes(tensor: TensorInfo, dtype: torch.dtype, n_rows: int) -> float:  # noqa: ARG001 - as `Moved` has it
    """Host memory that it reads: the bytes as they are stored, or in float32 those widened when a session opens.

    Told of a machine that multiplies stored bytes (`executor.host`), so that `sim` gives the same figures everywhere.
    """
    if is_stored_as(tensor, dtype) or dtype == torch.bfloat16:
        return tensor.n_bytes
    return math.prod(tensor.shape) * dtype.itemsize


def dense_work(tensors: Iterable[TensorInfo], n_tokens: int, dtype: torch.dtype, moved: Moved = device_bytes) -> Work:
    """GEMMs with every matrix: 2 flops a weight and token."""
    matrices = [t for t in tensors if len(t.shape) >= 2]
    n_weights = sum(math.prod(t.shape) for t in matrices)
    return Work(2.0 * n_weights * n_tokens, sum(moved(t, dtype, n_tokens) for t in matrices))


def experts_work(
    tensors: Iterable[TensorInfo],
    moe: MoeFfn,
    n_tokens: int,
    distinct: int,
    dtype: torch.dtype,
    moved: Moved = device_bytes,
    share: float = 1.0,
) -> Work:
    """Each token meets `n_used` experts; only the `distinct` experts in use are read.

    `share` of the tokens' choices are computed, where others are computed elsewhere.
    """
    stacks = [t for t in tensors if len(t.shape) == 3]
    weights_each = sum(math.prod(t.shape[1:]) for t in stacks)
    bytes_each = sum(moved(t, dtype, n_tokens) for t in stacks) / moe.n_experts
    return Work(2.0 * weights_each * n_tokens * moe.n_used * share, distinct * bytes_each)


def mix_work(layer: LayerShape, tensors: Iterable[TensorInfo], n_tokens: int, n_past: int, dtype: torch.dtype) -> Work:
    """The projections, plus the mixer proper over what each token sees, for the layer's `n_past` tokens before.

    Attention costs 4 flops a head dim, key and query (the products with keys and with values); latent attention the
    same over the dims of each; the gated delta net 8 a state element and token (decay, two reads and a write: the
    recurrence in `executor.layers.delta_net`).
    """
    projections = dense_work(tensors, n_tokens, dtype)
    mixer = layer.mixer
    seen = n_past + (n_tokens + 1) / 2
    if isinstance(mixer, AttentionShape):
        seen = min(seen, mixer.window) if mixer.window else seen
        if mixer.chunk is not None:
            seen = (_seen_in_chunks(n_past + n_tokens, mixer.chunk) - _seen_in_chunks(n_past, mixer.chunk)) / n_tokens
        flops = 4.0 * n_tokens * seen * mixer.n_heads * mixer.head_dim
        cache = 2.0 * dtype.itemsize * (seen + n_tokens) * mixer.n_kv_heads * mixer.head_dim
    elif isinstance(mixer, MlaShape):
        flops = 2.0 * n_tokens * seen * mixer.n_heads * (mixer.nope_dim + mixer.rope.dims + mixer.value_dim)
        cache = dtype.itemsize * seen * (mixer.kv_lora_rank + mixer.rope.dims)
    else:  # linear attention: the state is read and written once a token, whatever the depth
        flops = 8.0 * n_tokens * mixer.n_value_heads * mixer.key_dim * mixer.value_dim
        cache = 0.0
    return Work(projections.flops + flops, projections.n_bytes + cache)


def _seen_in_chunks(n: int, chunk: int) -> int:
    """How many positions the first n see together, where each sees those of its chunk up to itself."""
    full, rest = divmod(n, chunk)
    return (full * chunk * (chunk + 1) + rest * (rest + 1)) // 2
