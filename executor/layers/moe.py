"""A mixture-of-experts block's second half, in the steps that a copy policy comes between.

`route` chooses the experts, `used_flags` tells which of them must be at hand, `experts` runs them, `combine` closes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from executor.layers.expert_gemm import grouped_experts, looped_experts, one_token_experts
from executor.layers.ffn import ffn_norm
from executor.layers.weights import ExpertStack, Weights
from executor.shape import MoeFfn

# llama.cpp's floor for the sum that chosen weights are divided by: the smallest normal float16.
_SMALLEST_SUM = 6.103515625e-5


@dataclass(frozen=True, slots=True)
class Routed:
    """A ubatch after its router."""

    h: torch.Tensor  # (n, hidden), normed
    ids: torch.Tensor  # (n, n_used) int64, the chosen experts
    weights: torch.Tensor  # (n, n_used) float32, what each one's output counts


def route(x: torch.Tensor, w: Weights, moe: MoeFfn, eps: float) -> Routed:
    """Norm x (n, hidden) and let the model's own router choose."""
    h = ffn_norm(x, w, eps)
    logits = _router_logits(h, w)
    scores = _scores(logits, moe)
    bias = w.maybe("exp_probs_b.bias") if moe.score_bias else None
    ids = (scores if bias is None else scores + bias.float()).topk(moe.n_used, dim=-1).indices
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


def experts(routed: Routed, stack: ExpertStack, moe: MoeFfn, biases: Weights | None = None) -> torch.Tensor:
    """The weighted sum (n, hidden) of the chosen experts' outputs; `biases` gives `ffn_*_exps.bias` (gpt-oss)."""
    h, ids, biases = routed.h, routed.ids, biases if moe.expert_bias else None
    if not h.is_cuda:
        outputs = looped_experts(h, ids, stack, moe, biases)
    elif h.shape[0] == 1:
        outputs = one_token_experts(h, ids, stack, moe, biases)
    else:
        outputs = grouped_experts(h, ids, stack, moe, biases, used_flags(ids, moe.n_experts))
    return torch.bmm(routed.weights.to(outputs.dtype).unsqueeze(1), outputs).squeeze(1)


def shared_expert(h: torch.Tensor, w: Weights, moe: MoeFfn) -> torch.Tensor:
    """The expert that every token passes, (n, hidden), for normed h."""
    gate = F.silu(F.linear(h, w("ffn_gate_shexp.weight")))
    out = F.linear(gate * F.linear(h, w("ffn_up_shexp.weight")), w("ffn_down_shexp.weight"))
    if moe.shared_gate:
        out = out * torch.sigmoid(h @ w("ffn_gate_inp_shexp.weight").view(-1, 1))
    return out


def combine(x: torch.Tensor, routed_sum: torch.Tensor, shared: torch.Tensor | None = None) -> torch.Tensor:
    """Close the block: the residual x plus what the routed experts and the shared one add."""
    total = x + routed_sum
    return total if shared is None else total + shared


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
        case "softmax_topk":
            return logits


def _weights(scores: torch.Tensor, ids: torch.Tensor, moe: MoeFfn) -> torch.Tensor:
    chosen = scores.gather(-1, ids)
    if moe.scoring == "softmax_topk":
        chosen = chosen.softmax(-1)
    if moe.normalise:
        chosen = chosen / chosen.sum(-1, keepdim=True).clamp_min(_SMALLEST_SUM)
    return chosen * moe.scale
