"""What a layer asks of whoever holds its weights; the engine and the reference forward implement it."""

from __future__ import annotations

from typing import Protocol

import torch


class Weights(Protocol):
    """One step's tensors by short name (`attn_q.weight`), dequantised to the compute dtype, on its device."""

    def __call__(self, short_name: str) -> torch.Tensor:
        """The whole tensor in numpy order: a linear layer's weight is (out, in)."""

    def maybe(self, short_name: str) -> torch.Tensor | None:
        """The same, or None where the model has no such tensor."""

    def rows(self, short_name: str, ids: torch.Tensor) -> torch.Tensor:
        """Rows `ids` (n,) of a matrix, (n, in): an embedding lookup that dequantises only these rows."""


class ExpertStack(Protocol):
    """One MoE layer's routed experts; `name` is `ffn_gate_exps.weight`, `ffn_up_exps…`, `ffn_down_exps…`."""

    def one(self, name: str, expert: int) -> torch.Tensor:
        """One expert's matrix (out, in): what the loop over used experts on the CPU reads."""

    def all(self, name: str, flags: torch.Tensor) -> torch.Tensor:
        """The stack (n_experts, out, in) for a grouped GEMM.

        `flags` (n_experts,) uint8 on the device: an expert whose flag is 0 is not read and may hold anything.
        """

    def chosen(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        """The matrices (n, out, in) of the experts ids (n,) int64 on the device, in their order."""
