"""A model as the engine sees it: a shape, the tensors' names and sizes, and where their bytes come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from executor.shape import ModelShape, MoeFfn

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One weight tensor. `shape` is in numpy order: (out, in), an expert stack (n_experts, out, in)."""

    name: str  # GGUF's, e.g. "blk.3.ffn_up_exps.weight"
    quant: str  # "F32", "Q4_0", ...
    shape: tuple[int, ...]
    n_bytes: int

    @property
    def layer(self) -> int | None:
        """The block number in `blk.N.…`, None for tensors outside the blocks."""
        parts = self.name.split(".")
        return int(parts[1]) if parts[0] == "blk" else None

    @property
    def short_name(self) -> str:
        """The name without `blk.N.`."""
        return self.name.split(".", 2)[2] if self.name.startswith("blk.") else self.name


class WeightSource(Protocol):
    """Gives a tensor's bytes exactly as the file stores them (quantised)."""

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Fill `out` (uint8, 1-D, n_bytes long, on the CPU) with the tensor's bytes."""

    def mapped(self, name: str) -> torch.Tensor | None:
        """The bytes as a uint8 view of the memory-mapped file; None where nothing is mapped."""

    def will_need(self, name: str) -> None:
        """Ask the system to read the tensor's pages into its cache; does nothing where nothing is mapped."""

    def digest(self) -> str:
        """A short hash that names these weights: of the file, or of the seed and quant types."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model to run: `source` is asked for bytes only when a run places its weights."""

    shape: ModelShape
    tensors: Mapping[str, TensorInfo]
    source: WeightSource
    origin: str  # the path, or "preset:NAME" or "config:PATH"

    @property
    def is_synthetic(self) -> bool:
        """Whether the weights are made from a seed, for the shape of a preset or a config."""
        return self.origin.startswith(("preset:", "config:"))

    @property
    def has_experts(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return any(isinstance(layer.ffn, MoeFfn) for layer in self.shape.layers)

    @property
    def n_bytes(self) -> int:
        """All weights as they are stored."""
        return sum(t.n_bytes for t in self.tensors.values())
