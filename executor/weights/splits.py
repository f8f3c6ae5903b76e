"""Splits: the host tensors that one step of a layer needs, laid out so that one copy moves them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from executor.devices.base import Range
from executor.model import TensorInfo

StepKind = Literal["mix", "ffn", "router", "shared", "experts"]


@dataclass(frozen=True, slots=True)
class Part:
    """Where a tensor lies in a slot, in bytes: expert e of it begins at `offset + e * stride` (dense: e = 0)."""

    info: TensorInfo
    offset: int
    stride: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Contiguous host bytes that land at byte `target_from` of a slot; `stride` bytes belong to one expert."""

    source: torch.Tensor  # (n_bytes,) uint8 on the host
    target_from: int
    stride: int


@dataclass(frozen=True, slots=True)
class Split:
    """One unit of streaming. `n_experts` is 0 for dense tensors."""

    number: int
    layer: int
    what: StepKind
    parts: tuple[Part, ...]
    n_bytes: int
    n_experts: int
    segments: tuple[Segment, ...] = field(repr=False)
    memory: Literal["pinned", "pageable"] | None = None  # of the segments; None where a copy engine is no matter

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert in all its projections; 0 for dense tensors."""
        return self.n_bytes // self.n_experts if self.n_experts else 0

    @property
    def label(self) -> str:
        """The tensors' short names, `ffn_up|ffn_gate|…`, for the trace."""
        return "|".join(part.info.short_name.removesuffix(".weight") for part in self.parts)

    def whole(self, slot: torch.Tensor) -> list[Range]:
        """The copies that move everything into a slot, (n_bytes,) uint8."""
        return [Range(s.source, 0, slot, s.target_from, s.source.numel()) for s in self.segments]

    def runs(self, slot: torch.Tensor, experts: NDArray[np.bool_]) -> list[Range]:
        """The copies that move the chosen `experts` (n_experts,) into a slot, neighbours merged."""
        edges = np.flatnonzero(np.diff(experts, prepend=False, append=False))
        return [
            Range(s.source, int(a) * s.stride, slot, s.target_from + int(a) * s.stride, int(b - a) * s.stride)
            for s in self.segments
            for a, b in zip(edges[::2], edges[1::2], strict=True)
        ]


def step_kind(tensor: TensorInfo, *, is_moe: bool) -> StepKind:
    """Which step of its layer reads a tensor."""
    name = tensor.short_name
    if "_exps" in name:
        return "experts"
    if "_shexp" in name:
        return "shared"
    if name.startswith(("ffn_", "post_attention_norm", "exp_probs")):
        return "router" if is_moe else "ffn"
    return "mix"
