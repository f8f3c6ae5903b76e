"""Many small matrix products, one an expert: a grouped GEMM on CUDA, a loop over the used experts elsewhere.

Both order the (token, choice) pairs by expert, and neither reads an expert that no token chose. A single token on CUDA
needs neither, and half the kernels.

All take h (n, hidden) and ids (n, n_used), and give each token's chosen experts' outputs, (n, n_used, hidden).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F

from executor.layers.weights import ExpertStack, Weights
from executor.shape import MoeFfn

GATE: Final = "ffn_gate_exps.weight"
UP: Final = "ffn_up_exps.weight"
DOWN: Final = "ffn_down_exps.weight"

# gpt-oss's activation (its reference code's `swiglu`): a clamped gate with a steeper sigmoid, and up + 1.
_OAI_ALPHA: Final = 1.702
_OAI_LIMIT: Final = 7.0

_grouped_mm: Callable[..., torch.Tensor] = getattr(F, "grouped_mm", None) or torch._grouped_mm


def one_token_experts(
    h: torch.Tensor, ids: torch.Tensor, stack: ExpertStack, moe: MoeFfn, biases: Weights | None
) -> torch.Tensor:
    """One token's chosen experts' outputs, (1, n_used, hidden): matrices by a vector, nothing to sort or to group."""
    chosen = ids[0]

    def biased(out: torch.Tensor, name: str) -> torch.Tensor:
        return out if biases is None else out + biases(bias_name(name))[chosen]

    def project(name: str) -> torch.Tensor:
        matrices = stack.chosen(name, chosen)  # one product for all of them, as all read the same token
        return biased(F.linear(h, matrices.flatten(0, 1)).view(moe.n_used, -1), name)

    inner = activate(project(GATE), project(UP), moe)
    outputs = torch.bmm(stack.chosen(DOWN, chosen), inner.unsqueeze(-1)).squeeze(-1)
    return biased(outputs, DOWN).unsqueeze(0)


def grouped_experts(
    h: torch.Tensor,
    ids: torch.Tensor,
    stack: ExpertStack,
    moe: MoeFfn,
    biases: Weights | None,
    flags: torch.Tensor,
) -> torch.Tensor:
    """All experts in three grouped products; nothing here waits for the host or depends on a value on the device."""
    expert, order = ids.flatten().sort(stable=True)
    every = torch.arange(moe.n_experts, device=ids.device)
    ends = torch.searchsorted(expert, every, right=True, out_int32=True)

    def product(rows: torch.Tensor, name: str) -> torch.Tensor:
        out = _grouped_mm(rows, stack.all(name, flags).transpose(-1, -2), offs=ends)
        return out if biases is None else out + biases(bias_name(name))[expert]

    rows = h[order // moe.n_used]
    by_expert = product(activate(product(rows, GATE), product(rows, UP), moe), DOWN)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    return by_expert[back].view(*ids.shape, -1)


def looped_experts(
    h: torch.Tensor, ids: torch.Tensor, stack: ExpertStack, moe: MoeFfn, biases: Weights | None
) -> torch.Tensor:
    """One used expert after the other, each over its own tokens."""
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=moe.n_experts).tolist()
    outputs = h.new_empty(flat.numel(), h.shape[-1])
    for expert, pairs in enumerate(order.split(counts)):
        if pairs.numel():
            outputs[pairs] = _one_expert(h[pairs // moe.n_used], expert, stack, moe, biases)
    return outputs.view(*ids.shape, -1)


def _one_expert(
    rows: torch.Tensor, expert: int, stack: ExpertStack, moe: MoeFfn, biases: Weights | None
) -> torch.Tensor:
    def product(rows: torch.Tensor, name: str) -> torch.Tensor:
        bias = None if biases is None else biases(bias_name(name))[expert]
        return F.linear(rows, stack.one(name, expert), bias)

    return product(activate(product(rows, GATE), product(rows, UP), moe), DOWN)


def activate(gate: torch.Tensor, up: torch.Tensor, moe: MoeFfn) -> torch.Tensor:
    """The gated activation of one expert's two projections."""
    match moe.activation:
        case "silu":
            return F.silu(gate).mul_(up)
        case "oai_swiglu":
            gate = gate.clamp(max=_OAI_LIMIT)
            up = up.clamp(-_OAI_LIMIT, _OAI_LIMIT)
            return gate * torch.sigmoid(_OAI_ALPHA * gate) * (up + 1)


def bias_name(name: str) -> str:
    """`ffn_up_exps.bias` for `ffn_up_exps.weight`."""
    return name.replace(".weight", ".bias")
