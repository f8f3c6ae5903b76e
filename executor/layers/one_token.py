"""One token's small kernels, where a GPU has them fused (`token_norm`, `token_attention` and others): what layers call.

Where they do not serve (no Triton, float32, a rare kind of layer), layers go on with PyTorch's operations. Which of
the two is taken depends on the model and the machine alone, so that all arms do the same.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

import torch

from executor.layers.attention_kernels import OneToken, flash_serves
from executor.layers.state import AttentionState
from executor.model import AttentionShape, MoeFfn
from executor.triton_support import has_triton

HeadNorms = tuple[torch.Tensor | None, torch.Tensor | None]
"""The weights (head_dim,) of queries' and keys' norms; None: brought to one length, without a weight."""
_MOST_NUMBERS = 4096  # of the queries that share a key, as many as fit in registers
_MOST_EXPERTS = 1024
_MOST_USED = 64  # experts a token: the kernel finds one after the other


@functools.cache
def _kernels(name: str) -> ModuleType:
    """They need Triton."""
    return importlib.import_module(f"executor.layers.token_{name}")


def serves(x: torch.Tensor) -> bool:
    """Whether such numbers (n, …) are one token's on a GPU that has the fused kernels."""
    return x.is_cuda and x.shape[0] == 1 and x.dtype in (torch.bfloat16, torch.float16) and has_triton()


def norm_serves(x: torch.Tensor) -> bool:
    """Whether `rms_norm` takes x."""
    return x.ndim == 2 and serves(x) and x.is_contiguous()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`executor.layers.dense.rms_norm` of x (1, n)."""
    normed: torch.Tensor = _kernels("norm").rms_norm(x, weight, eps)
    return normed


def attention_serves(q: torch.Tensor, shape: AttentionShape) -> bool:
    """Whether `attend` takes such queries (1, heads, head_dim): the rest of `shape` is handled by it or around it."""
    is_power = shape.head_dim & (shape.head_dim - 1) == 0
    numbers = max(16, shape.n_heads // shape.n_kv_heads) * shape.head_dim
    plain = not shape.qk_norm_joint and shape.temperature is None
    return serves(q) and flash_serves(q) and is_power and shape.head_dim >= 16 and plain and numbers <= _MOST_NUMBERS


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    norms: HeadNorms | None,
    sinks: torch.Tensor | None,
    shape: AttentionShape,
    state: AttentionState,
    at: OneToken,
    eps: float,
) -> torch.Tensor:
    """Norms, rotation, the cache's new row and attention: (1, heads, head_dim) of projected q, k and v.

    q (1, heads, head_dim), k and v (1, kv_heads, head_dim); `sinks` (heads,) as of `attention_kernels.attend`.
    """
    out: torch.Tensor = _kernels("attention").attend(
        q, k, v, norms, state.rope, (state.keys, state.values), at,
        window=shape.window, sinks=sinks, scale=shape.scale, eps=eps,
    )  # fmt: skip
    return out


def router_serves(x: torch.Tensor, moe: MoeFfn) -> bool:
    """Whether `route` chooses among such experts for x (1, hidden)."""
    return serves(x) and moe.n_groups == 1 and moe.n_experts <= _MOST_EXPERTS and moe.n_used <= _MOST_USED


def route(
    x: torch.Tensor,
    norm: torch.Tensor,
    router: torch.Tensor,
    biases: tuple[torch.Tensor | None, torch.Tensor | None],
    moe: MoeFfn,
    eps: float,
    into: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    given: torch.Tensor | None,
    begin: torch.Tensor,
) -> None:
    """`executor.layers.router.route` of x (1, hidden) under the weights `norm` and `router`, put into buffers.

    `biases` (n_experts,) of logits, and of scores for the choice alone. `into`: h (1, hidden), ids and weights
    (1, n_used), flags (n_experts,). With `given` (rows, n_used) int64 its row `begin` (1,) is the choice.
    """
    _kernels("router").route(x, norm, router, biases, moe, eps, into, given, begin)


def arg_max(row: torch.Tensor, out: torch.Tensor) -> None:
    """Put the index of the largest of row (n,) float32 into `out` (1,) int64."""
    if row.is_cuda and has_triton():
        _kernels("arg_max").arg_max(row, out)
    else:
        out.copy_(row.argmax().view(1))
