"""What an architecture's entry says, and what reading a file's shape is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from executor.model import Activation, Ffn, Mixer, Scoring, TensorInfo
from executor.models.checks import Fields

Tensors = Mapping[str, TensorInfo]


@dataclass(frozen=True, slots=True)
class Architecture:
    """What llama.cpp's code for an architecture knows and its files do not say.

    `mixer` and `ffn` read those parts of a layer where plain grouped-query attention, and SwiGLU or experts of it,
    do not describe them.
    """

    mixer: Callable[[ModelFile, int], Mixer] | None = None
    ffn: Callable[[ModelFile, int], Ffn] | None = None
    interleaved_rope: bool = False
    qk_norm: Literal["never", "optional", "always"] = "never"
    sinks: bool = False
    window_every: int | None = None  # of each so many layers all but the last have the sliding window
    scoring: Scoring = "softmax"
    normalise: bool = True
    shared_gate: bool = False
    activation: Activation = "silu"
    reads_router_keys: bool = False  # expert_gating_func, expert_weights_norm and _scale: others' are ignored
    output_bias: bool = False
    splits_n_ff: bool = False  # the width of all experts of a token together is what feed_forward_length is


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file's description of a model, as the readers of layers are given it."""

    name: str  # of the architecture
    architecture: Architecture
    fields: Fields
    tensors: Tensors
    rope_factors: tuple[float, ...]  # the numbers in its `rope_freqs.weight`
    n_layers: int
    hidden: int

    def has(self, layer: int, *short_names: str) -> bool:
        """Whether the file has one of the tensors."""
        return any(f"blk.{layer}.{name}" in self.tensors for name in short_names)
