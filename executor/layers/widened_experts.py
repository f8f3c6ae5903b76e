"""Chosen experts by matrices in the compute dtype.

A grouped GEMM on CUDA and a loop over the used experts elsewhere; neither reads an expert that no token chose. One
token on CUDA needs neither, and half the kernels. All take h (n, hidden) and ids (n, n_used) and give each choice's
output, (n, n_used, hidden).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F

from executor.layers.choice_factors import AS_THEY_ARE, ChoiceFactors, times
from executor.layers.dense import ExpertStack, Weights, activate
from executor.model import MoeFfn

GATE: Final = "ffn_gate_exps.weight"
UP: Final = "ffn_up_exps.weight"
DOWN: Final = "ffn_down_exps.weight"
_MULTIPLE: Final = 8  # numbers of 16 bits
grouped_mm: Callable[..., torch.Tensor] = getattr(F, "grouped_mm", None) or torch._grouped_mm


def one_token_experts(
    h: torch.Tensor,
    ids: torch.Tensor,
    stack: ExpertStack,
    moe: MoeFfn,
    biases: Weights | None,
    factors: ChoiceFactors = AS_THEY_ARE,
) -> torch.Tensor:
    """One token's chosen experts' outputs, (1, n_used, hidden): matrices by a vector, nothing to sort or to group."""
    chosen = ids[0]

    def biased(out: torch.Tensor, name: str) -> torch.Tensor:
        return out if biases is None else out + biases(bias_name(name))[chosen]

    def project(name: str, factor: torch.Tensor | None) -> torch.Tensor:
        matrices = stack.chosen(name, chosen)  # one product for all of them, as all read the same token
        return biased(times(F.linear(h, matrices.flatten(0, 1)).view(moe.n_used, -1), factor), name)

    inner = activate(project(GATE, factors.gate), project(UP, factors.up), moe.activation)
    outputs = torch.bmm(stack.chosen(DOWN, chosen), inner.unsqueeze(-1)).squeeze(-1)
    return biased(outputs, DOWN).unsqueeze(0)


def grouped_experts(
    h: torch.Tensor,
    ids: torch.Tensor,
    stack: ExpertStack,
    moe: MoeFfn,
    biases: Weights | None,
    flags: torch.Tensor,
    factors: ChoiceFactors = AS_THEY_ARE,
) -> torch.Tensor:
    """All experts in three grouped products; nothing here waits for the host or depends on a value on the device."""
    expert, order = ids.flatten().sort(stable=True)
    every = torch.arange(moe.n_experts, device=ids.device)
    ends = torch.searchsorted(expert, every, right=True, out_int32=True)

    def product(rows: torch.Tensor, name: str, factor: torch.Tensor | None = None) -> torch.Tensor:
        out = times(_grouped(rows, stack.all(name, flags), ends), factor, order)
        return out if biases is None else out + biases(bias_name(name))[expert]

    rows = h[order // moe.n_used]
    inner = activate(product(rows, GATE, factors.gate), product(rows, UP, factors.up), moe.activation)
    by_expert = product(inner, DOWN)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    return by_expert[back].view(*ids.shape, -1)


def _grouped(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows (m, in), sorted by group, by the transpose of their group's of `matrices` (n_groups, out, in): (m, out).

    Torch's product wants rows of whole 16 bytes: odd widths get zeros beside them.
    """
    n_out, n_in = matrices.shape[1:]
    if n_out % _MULTIPLE or n_in % _MULTIPLE:
        rows = F.pad(rows, (0, -n_in % _MULTIPLE))
        matrices = F.pad(matrices, (0, -n_in % _MULTIPLE, 0, -n_out % _MULTIPLE))
    return grouped_mm(rows, matrices.transpose(-1, -2), offs=ends)[:, :n_out]


def looped_experts(
    h: torch.Tensor,
    ids: torch.Tensor,
    stack: ExpertStack,
    moe: MoeFfn,
    biases: Weights | None,
    factors: ChoiceFactors = AS_THEY_ARE,
) -> torch.Tensor:
    """One used expert after the other, each over its own tokens."""
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=moe.n_experts).tolist()
    outputs = h.new_empty(flat.numel(), h.shape[-1])
    for expert, pairs in enumerate(order.split(counts)):
        if pairs.numel():
            outputs[pairs] = _one_expert(h[pairs // moe.n_used], pairs, expert, stack, moe, biases, factors)
    return outputs.view(*ids.shape, -1)


def _one_expert(
    rows: torch.Tensor,
    pairs: torch.Tensor,
    expert: int,
    stack: ExpertStack,
    moe: MoeFfn,
    biases: Weights | None,
    factors: ChoiceFactors,
) -> torch.Tensor:
    """One expert's outputs for its own rows; `pairs` says which choice of all each row is of."""

    def product(rows: torch.Tensor, name: str, factor: torch.Tensor | None = None) -> torch.Tensor:
        out = times(F.linear(rows, stack.one(name, expert)), factor, pairs)
        return out if biases is None else out + biases(bias_name(name))[expert]

    inner = activate(product(rows, GATE, factors.gate), product(rows, UP, factors.up), moe.activation)
    return product(inner, DOWN)


def bias_name(name: str) -> str:
    """`ffn_up_exps.bias` for `ffn_up_exps.weight`."""
    return name.replace(".weight", ".bias")
