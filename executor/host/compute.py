"""A dense FFN and a layer's experts, computed on the host with the products that it keeps."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from executor.host.products import Product
from executor.host.weights import HostStepWeights, StepProducts
from executor.layers.expert_gemm import DOWN, GATE, UP, activate, bias_name
from executor.layers.ffn import MOST_ROWS, ffn_norm
from executor.layers.moe import Routed
from executor.shape import MoeFfn

Groups = list[tuple[int, int, int]]
"""(expert, from, to): the rows that each used expert multiplies."""


def host_ffn(x: torch.Tensor, products: StepProducts, weights: HostStepWeights, eps: float) -> torch.Tensor:
    """x (n, hidden) plus down(silu(gate(h)) * up(h)) of the normed h."""
    pieces = [_swiglu(rows, products) for rows in ffn_norm(x, weights, eps).split(MOST_ROWS)]
    return x + (pieces[0] if len(pieces) == 1 else torch.cat(pieces))


def _swiglu(h: torch.Tensor, products: StepProducts) -> torch.Tensor:
    gate, up = products.gate_up(h, 0).chunk(2, dim=-1)
    return products.down(F.silu(gate).mul_(up), 0)


def host_experts(routed: Routed, products: StepProducts, moe: MoeFfn, biases: HostStepWeights) -> torch.Tensor:
    """The weighted sum (n, hidden) of the chosen experts' outputs. Rows that share an expert go through it together."""
    n, n_used = routed.ids.shape
    expert, order, groups = _by_expert(routed.ids, moe.n_experts)
    rows = routed.h.expand(n_used, -1) if order is None else routed.h[order // n_used]
    gate, up = _each(products.gate_up, rows, groups).chunk(2, dim=-1)
    if moe.expert_bias:
        gate, up = gate + biases(bias_name(GATE))[expert], up + biases(bias_name(UP))[expert]
    by_expert = _each(products.down, activate(gate, up, moe), groups)
    if moe.expert_bias:
        by_expert = by_expert + biases(bias_name(DOWN))[expert]
    outputs = by_expert if order is None else torch.empty_like(by_expert).index_copy_(0, order, by_expert)
    return torch.bmm(routed.weights.to(outputs.dtype).unsqueeze(1), outputs.view(n, n_used, -1)).squeeze(1)


def _by_expert(ids: torch.Tensor, n_experts: int) -> tuple[torch.Tensor, torch.Tensor | None, Groups]:
    """The (token, choice) pairs ordered by expert: each one's expert, its place before, and the experts' rows.

    One token's choices need no order.
    """
    flat = ids.flatten()
    if ids.shape[0] == 1:
        return flat, None, [(expert, i, i + 1) for i, expert in enumerate(flat.tolist())]
    expert, order = flat.sort(stable=True)
    counts = torch.bincount(flat, minlength=n_experts).tolist()
    groups, start = [], 0
    for number, count in enumerate(counts):
        if count:
            groups.append((number, start, start + count))
        start += count
    return expert, order, groups


def _each(product: Product, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
    return torch.cat([product(rows[start:end], expert) for expert, start, end in groups])
