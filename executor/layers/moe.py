"""A mixture-of-experts block's second half, behind its router (`layers.router`).

`experts` runs the chosen ones, `shared_expert` the one that every token passes, `combine` closes. Few tokens read the
experts' bytes as they are stored where that is faster (`executor.quants.products`), others by matrices in the compute
dtype (`layers.widened_experts`).
"""

from __future__ import annotations

from functools import partial

import torch

from executor.layers.choice_factors import ChoiceFactors, choice_factors, summed
from executor.layers.dense import ExpertStack, HasStoredExperts, Weights, add_residual, gated_ffn
from executor.layers.router import Routed, used_flags
from executor.layers.widened_experts import DOWN, GATE, UP, grouped_experts, looped_experts, one_token_experts
from executor.model import MoeFfn
from executor.quants import products


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
