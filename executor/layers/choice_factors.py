"""What the projections and the output of each chosen expert are multiplied by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from executor.layers.dense import Weights
from executor.layers.router import Routed
from executor.model import MoeFfn


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
