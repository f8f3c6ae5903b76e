"""A router: which experts each token passes, and what each one's output counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F

from executor.layers import one_token
from executor.layers.dense import Weights, ffn_norm, ffn_norm_weight
from executor.model import MoeFfn

# llama.cpp's floor for the sum that chosen weights are divided by: the smallest normal float16.
_SMALLEST_SUM = 6.103515625e-5
MOST_COUNTED: Final = 255
"""Rows of an expert that are told apart: as many as a byte can say."""


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
    compared = scores if bias is None else scores + bias.float()
    if moe.n_groups > 1:
        compared = _in_best_groups(compared, moe)
    ids = compared.topk(moe.n_used, dim=-1).indices
    return Routed(h, ids, _weights(scores, ids, moe))


def route_given(x: torch.Tensor, w: Weights, moe: MoeFfn, ids: torch.Tensor, eps: float) -> Routed:
    """The same work with the choice given (ids (n, n_used) int64): random weights route unlike trained ones."""
    h = ffn_norm(x, w, eps)
    return Routed(h, ids, _weights(_scores(_router_logits(h, w), moe), ids, moe))


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


def used_flags(ids: torch.Tensor, n_experts: int) -> torch.Tensor:
    """1 for each expert that any token chose, (n_experts,) uint8 on the ids' device.

    Tokens write the same value, so their order does not matter.
    """
    return torch.zeros(n_experts, dtype=torch.uint8, device=ids.device).scatter_(0, ids.flatten(), 1)


def rows_by_expert(ids: torch.Tensor, n_experts: int) -> torch.Tensor:
    """How many tokens chose each expert, (n_experts,) int32 on the ids' device; `MOST_COUNTED` stands for more."""
    flat = ids.flatten()
    rows = torch.zeros(n_experts, dtype=torch.int32, device=ids.device)
    rows.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    return rows if len(ids) <= MOST_COUNTED else rows.clamp_(max=MOST_COUNTED)


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
