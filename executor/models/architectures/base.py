"""What an architecture's entry says, and what reading a file's shape is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from executor.model import Activation, Ffn, Mixer, Scoring, TensorInfo
from executor.models.checks import Fields

Tensors = Mapping[str, TensorInfo]
ATTENTION_SCALES: Final = ("attn_q", "attn_k", "attn_v", "attn_output")
FFN_SCALES: Final = ("ffn_gate", "ffn_up", "ffn_down")
EXPERT_SCALES: Final = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
ROUTER_KEYS: Final = ("expert_gating_func", "expert_weights_norm", "expert_weights_scale")


@dataclass(frozen=True, slots=True)
class Architecture:
    """What llama.cpp's code for an architecture knows and its files do not say.

    `mixer` and `ffn` read those parts of a layer where plain grouped-query attention, and SwiGLU or experts of it,
    do not describe them; `multipliers` reads what is scaled between them.
    """

    mixer: Callable[[ModelFile, int], Mixer] | None = None
    ffn: Callable[[ModelFile, int], Ffn] | None = None
    multipliers: Callable[[ModelFile], Multipliers] | None = None
    interleaved_rope: bool = False
    sections: Literal["in a row", "in turn"] | None = None  # of pairs that turn by time, height and width
    long_rope: bool = False  # rotation factors for short and long contexts, where the file has them
    qk_norm: Literal["never", "optional", "always"] = "never"
    sinks: bool = False
    window_every: int | None = None  # of each so many layers all but the last have the sliding window
    window_optional: bool = False  # a file may state none
    scoring: Scoring = "softmax"
    normalise: bool = True
    weighs_input: bool = False  # a router's weights count on what experts read
    shared: Literal["optional", "always"] = "optional"
    """Whether there is a shared expert: as the file's tensors have it, or in every layer, under a sigmoid gate."""
    activation: Activation = "silu"
    router_keys: tuple[str, ...] = ()  # which of `ROUTER_KEYS` are read: others' are ignored
    yarn_keys: bool = False  # whether YaRN's turns and its log multiplier are read
    ffn_bias: bool = False  # whether a dense FFN may have biases
    scaled: tuple[str, ...] = ATTENTION_SCALES  # whose products llama.cpp multiplies by `*.scale`, where there is one
    output_bias: bool = False
    requires: tuple[str, ...] = ()  # tensors, by short name, that other architectures' files may lack
    leading_dense: bool = False  # whether leading_dense_block_count is read
    splits_n_ff: bool = False  # the width of all experts of a token together is what feed_forward_length is


@dataclass(frozen=True, slots=True)
class Multipliers:
    """What the embedding, each part's addition to the residual stream and the logits are multiplied by."""

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    logit_cap: float | None = None


@dataclass(frozen=True, slots=True)
class RopeFactors:
    """The numbers in a file's tensors of rotation factors; empty where it has no such tensor."""

    plain: tuple[float, ...] = ()  # rope_freqs.weight
    short: tuple[float, ...] = ()  # rope_factors_short.weight
    long: tuple[float, ...] = ()  # rope_factors_long.weight


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file's description of a model, as the readers of layers are given it."""

    name: str  # of the architecture
    architecture: Architecture
    fields: Fields
    tensors: Tensors
    rope_factors: RopeFactors
    n_layers: int
    hidden: int

    def has(self, layer: int, *short_names: str) -> bool:
        """Whether the file has one of the tensors, or must have it."""
        required = self.architecture.requires
        return any(name in required or f"blk.{layer}.{name}" in self.tensors for name in short_names)

    def scaled(self, layer: int, pattern: str, *names: str) -> tuple[str, ...]:
        """Of `names` those whose tensor, called `pattern` with the name in its place, the file and llama.cpp scale."""
        full = {name: pattern.format(name) for name in names}
        return tuple(n for n in names if full[n] in self.architecture.scaled and self.has(layer, f"{full[n]}.scale"))
