"""A mixture-of-experts block's second half, in the steps that a copy policy comes between.

`route` chooses the experts, `used_flags` tells which of them must be at hand, `experts` runs them, `combine`
closes. Experts run as a grouped GEMM on CUDA and as a loop over the used ones elsewhere; neither reads an expert
that no token chose. One token on CUDA needs neither, and half the kernels; few tokens read the experts' bytes as they
are stored where that is faster (`executor.quants.products`). All take h (n, hidden) and ids
(n, n_used) and give each choice's output, (n, n_used, hidden).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F

from executor.layers import one_token
from executor.layers.dense import (
    ExpertStack,
    HasStoredExperts,
    Weights,
    activate,
    add_residual,
    ffn_norm,
    ffn_norm_weight,
    gated_ffn,
)
from executor.model import MoeFfn
from executor.quants import products

# llama.cpp's floor for the sum that chosen weights are divided by: the smallest normal float16.
_SMALLEST_SUM = 6.103515625e-5
GATE: Final = "ffn_gate_exps.weight"
UP: Final = "ffn_up_exps.weight"
DOWN: Final = "ffn_down_exps.weight"
grouped_mm: Callable[..., torch.Tensor] = getattr(F, "grouped_mm", None) or torch._grouped_mm


@dataclass(frozen=True, slots=True)
class Routed:
    """A ubatch after its router."""

    h: torch.Tensor  # (n, hidden), normed
    ids: torch.Tensor  # (n, n_used) int64, the chosen experts
    weights: torch.Tensor  # (n, n_used) float32, what each one's output counts


@dataclass(frozen=True, slots=True)
class ChoiceFactors:
    """What each choice's projections, before biases, and its output are multiplied by, (n, n_used); None: by 1."""

    gate: torch.Tensor | None
    up: torch.Tensor | None
    output: torch.Tensor | None


AS_THEY_ARE: Final = ChoiceFactors(None, None, None)


def choice_factors(routed: Routed, moe: MoeFfn, vectors: Weights | None = None) -> ChoiceFactors:
    """Those of a router's choice; `vectors` gives `ffn_*_exps.scale`, where experts are scaled.

    To weigh or to scale what a matrix reads is to do so with what it gives.
    """

    def scales(name: str) -> torch.Tensor | None:
        if vectors is None or name not in moe.scaled:
            return None
        return vectors(f"ffn_{name}_exps.scale").float()[routed.ids]

    before, after = (routed.weights, None) if moe.weighs_input else (None, routed.weights)
    gate, up = (_product(before, scales(name)) for name in ("gate", "up"))
    return ChoiceFactors(gate, up, _product(after, scales("down")))


def _product(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one * other


def route_one(
    x: torch.Tensor,
    w: Weights,
    moe: MoeFfn,
    eps: float,
    kept: Routed,
    flags: torch.Tensor,
    given: torch.Tensor | None,
    begin: torch.Tensor,
) -> None:
    """One token's choice in one kernel, where `one_token.router_serves`: into `kept` and flags (n_experts,).

    `given` (rows, n_used) int64 and `begin` (1,): the choice is that row of them, and not the router's.
    """
    biases = (w.maybe("ffn_gate_inp.bias"), w.maybe("exp_probs_b.bias") if moe.score_bias else None)
    into = (kept.h, kept.ids, kept.weights, flags)
    one_token.route(x, ffn_norm_weight(w), w("ffn_gate_inp.weight"), biases, moe, eps, into, given, begin)


def route(x: torch.Tensor, w: Weights, moe: MoeFfn, eps: float) -> Routed:
    """Norm x (n, hidden) and let the model's own router choose."""
    h = ffn_norm(x, w, eps)
    logits = _router_logits(h, w)
    scores = _scores(logits, moe)
    bias = w.maybe("exp_probs_b.bias") if moe.score_bias else None
    compared = scores if bias is None else scores + bias.float()
    if moe.n_groups > 1:
        compared = _in_best_groups(compared, moe)
    ids = compared.topk(moe.n_used, dim=-1).indices
    return Routed(h, ids, _weights(scores, ids, moe))


def route_given(x: torch.Tensor, w: Weights, moe: MoeFfn, ids: torch.Tensor, eps: float) -> Routed:
    """The same work with the choice given (ids (n, n_used) int64): random weights route unlike trained ones."""
    h = ffn_norm(x, w, eps)
    return Routed(h, ids, _weights(_scores(_router_logits(h, w), moe), ids, moe))


def used_flags(ids: torch.Tensor, n_experts: int) -> torch.Tensor:
    """1 for each expert that any token chose, (n_experts,) uint8 on the ids' device.

    Tokens write the same value, so their order does not matter.
    """
    return torch.zeros(n_experts, dtype=torch.uint8, device=ids.device).scatter_(0, ids.flatten(), 1)


def experts(
    routed: Routed,
    stack: ExpertStack,
    moe: MoeFfn,
    vectors: Weights | None = None,
    counted: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weighted sum (n, hidden) of the chosen experts' outputs; `vectors` gives `ffn_*_exps.bias` and `.scale`.

    `counted` (n, n_used) bool leaves the other choices out of the sum; None: all count.
    """
    factors = choice_factors(routed, moe, vectors)
    widened = partial(_widened_experts, routed, stack, moe, vectors, counted, factors)
    weights = _plain_weights(routed, moe, factors, counted)
    if weights is None or not isinstance(stack, HasStoredExperts):
        return widened()
    return products.experts(routed.h, routed.ids, weights, stack.stored(GATE, UP, DOWN), moe.activation, widened)


def add_experts(
    x: torch.Tensor,
    scale: float,
    routed: Routed,
    stack: ExpertStack,
    moe: MoeFfn,
    vectors: Weights | None = None,
    counted: torch.Tensor | None = None,
) -> None:
    """Add `scale` times what `experts` gives to the residual x (n, hidden), in place."""
    factors = choice_factors(routed, moe, vectors)
    widened = partial(_widened_experts, routed, stack, moe, vectors, counted, factors)
    weights = _plain_weights(routed, moe, factors, counted)
    if weights is None or not isinstance(stack, HasStoredExperts):
        add_residual(x, widened(), scale)
        return
    stacks = stack.stored(GATE, UP, DOWN)
    products.add_experts(x, scale, routed.h, routed.ids, weights, stacks, moe.activation, widened)


def _plain_weights(
    routed: Routed, moe: MoeFfn, factors: ChoiceFactors, counted: torch.Tensor | None
) -> torch.Tensor | None:
    """What each choice's output counts, (n, n_used), where that is all there is beside the matrices; else None."""
    is_plain = not moe.expert_bias and factors.gate is None and factors.up is None
    if not is_plain or factors.output is None or not products.serves(routed.h):
        return None
    return factors.output if counted is None else factors.output.masked_fill(~counted, 0)


def _widened_experts(
    routed: Routed,
    stack: ExpertStack,
    moe: MoeFfn,
    vectors: Weights | None,
    counted: torch.Tensor | None,
    factors: ChoiceFactors,
) -> torch.Tensor:
    """The same by matrices in the compute dtype."""
    h, ids, biases = routed.h, routed.ids, vectors if moe.expert_bias else None
    if not h.is_cuda:
        outputs = looped_experts(h, ids, stack, moe, biases, factors)
    elif h.shape[0] == 1:
        outputs = one_token_experts(h, ids, stack, moe, biases, factors)
    else:
        outputs = grouped_experts(h, ids, stack, moe, biases, used_flags(ids, moe.n_experts), factors)
    if counted is not None:
        outputs = outputs.masked_fill(~counted.unsqueeze(-1), 0)
    return summed(outputs, factors)


def summed(outputs: torch.Tensor, factors: ChoiceFactors) -> torch.Tensor:
    """The choices' outputs (n, n_used, hidden), each times its factor, added up: (n, hidden)."""
    if factors.output is None:
        return outputs.sum(1)
    return torch.bmm(factors.output.to(outputs.dtype).unsqueeze(1), outputs).squeeze(1)


def times(rows: torch.Tensor, factor: torch.Tensor | None, order: torch.Tensor | None = None) -> torch.Tensor:
    """Choices' rows (m, width), each times its factor; `order` (m,) says which choice of all a row is of."""
    if factor is None:
        return rows
    flat = factor.flatten()
    return rows * (flat if order is None else flat[order]).to(rows.dtype).unsqueeze(-1)


def shared_expert(h: torch.Tensor, w: Weights, moe: MoeFfn) -> torch.Tensor:
    """The expert that every token passes, (n, hidden), for normed h."""
    out = gated_ffn(h, w, "silu", "_shexp")
    if moe.shared_gate:
        out = out * torch.sigmoid(h @ w("ffn_gate_inp_shexp.weight").view(-1, 1))
    return out


def combine(x: torch.Tensor, routed_sum: torch.Tensor, shared: torch.Tensor | None = None, scale: float = 1.0) -> None:
    """Close the block: to the residual x add `scale` times what the routed experts and the shared one add."""
    add_residual(x, routed_sum, scale)
    if shared is not None:
        add_residual(x, shared, scale)


def _router_logits(h: torch.Tensor, w: Weights) -> torch.Tensor:
    """Float32 (n, n_experts): a choice by rounded logits would differ from the model's."""
    weight, bias = w("ffn_gate_inp.weight"), w.maybe("ffn_gate_inp.bias")
    if h.is_cuda and h.dtype != torch.float32:
        logits = torch.mm(h, weight.to(h.dtype).t(), out_dtype=torch.float32)
    else:
        logits = F.linear(h.float(), weight.float())
    return logits if bias is None else logits + bias.float()


def _scores(logits: torch.Tensor, moe: MoeFfn) -> torch.Tensor:
    """What experts are compared by."""
    match moe.scoring:
        case "softmax":
            return logits.softmax(-1)
        case "sigmoid":
            return logits.sigmoid()
        case "softmax_topk" | "sigmoid_topk":
            return logits


def _in_best_groups(scores: torch.Tensor, moe: MoeFfn) -> torch.Tensor:
    """Scores (n, n_experts), minus infinity outside each token's best groups: those whose two best add up to most."""
    groups = scores.view(-1, moe.n_groups, moe.n_experts // moe.n_groups)
    best = groups.topk(2, dim=-1).values.sum(-1).topk(moe.n_groups_used, dim=-1).indices
    left_out = torch.ones(groups.shape[:2], dtype=torch.bool, device=scores.device).scatter_(1, best, False)
    return groups.masked_fill(left_out.unsqueeze(-1), float("-inf")).flatten(1)


def _weights(scores: torch.Tensor, ids: torch.Tensor, moe: MoeFfn) -> torch.Tensor:
    chosen = scores.gather(-1, ids)
    if moe.scoring == "softmax_topk":
        chosen = chosen.softmax(-1)
    elif moe.scoring == "sigmoid_topk":
        chosen = chosen.sigmoid()
    if moe.normalise:
        chosen = chosen / chosen.sum(-1, keepdim=True).clamp_min(_SMALLEST_SUM)
    return chosen * moe.scale


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
        out = times(grouped_mm(rows, stack.all(name, flags).transpose(-1, -2), offs=ends), factor, order)
        return out if biases is None else out + biases(bias_name(name))[expert]

    rows = h[order // moe.n_used]
    inner = activate(product(rows, GATE, factors.gate), product(rows, UP, factors.up), moe.activation)
    by_expert = product(inner, DOWN)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    return by_expert[back].view(*ids.shape, -1)


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
