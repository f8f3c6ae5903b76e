"""A model as the engine sees it: its shape, its tensors' names and sizes, and where their bytes come from.

Plain frozen data that readers, presets, layers and the engine share. Shapes are in numpy order (rows, columns): a
linear layer's weight is (out_features, in_features), an expert stack (n_experts, out_features, in_features).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    import torch

_MOST_NAMES: Final = 1 << 16  # of tensors; a search of settings asks for their layers again and again
Scoring = Literal["softmax", "sigmoid", "softmax_topk", "sigmoid_topk"]
"""How a router's logits become scores. With `softmax_topk` and `sigmoid_topk` the logits decide the choice, and the
chosen experts' alone become scores (gpt-oss, Llama 4)."""
Activation = Literal["silu", "gelu", "oai_swiglu"]
"""What joins gate and up projections; `gelu` is its tanh form (Gemma), `oai_swiglu` gpt-oss's."""


@dataclass(frozen=True, slots=True)
class RopeShape:
    """Rotary embedding: `dims` of each head are rotated, with base `theta`; with 0, positions turn nothing."""

    theta: float
    dims: int
    interleaved: bool = False  # True: pairs (0,1),(2,3).. as `llama` GGUF files store them; False: half-split
    scaling: Literal["none", "linear", "yarn", "llama3"] = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0  # cosine and sine are multiplied by it (YaRN: 0.1 ln(factor) + 1)
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    factors: tuple[float, ...] = ()  # divide each pair's frequency (a file's `rope_freqs.weight`)
    long_factors: tuple[float, ...] = ()  # instead, for states of more than `original_context` positions (Phi-3)

    def at_rest(self) -> RopeShape:
        """The same with nothing rotated: of layers without positions."""
        return replace(self, dims=0, factors=(), long_factors=())


@dataclass(frozen=True, slots=True)
class TemperatureShape:
    """Queries that grow with their position: times 1 + scale * ln(1 + floor((position + offset) / length))."""

    length: int
    scale: float
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Grouped-query attention; with `window`, a token sees itself and the `window - 1` before it.

    With `chunk`, it sees of the tokens before it those of its own chunk of so many positions (Llama 4).
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    rope: RopeShape
    window: int | None = None
    chunk: int | None = None
    temperature: TemperatureShape | None = None
    qk_unit: bool = False  # queries and keys are brought to one length, without a weight (Llama 4)
    qk_norm: bool = False
    qk_norm_joint: bool = False  # over all heads of a token together (OLMoE), not head by head
    scale: float | None = None  # of the logits; None: head_dim ** -0.5
    post_norm: bool = False  # another norm, before the residual is added (Gemma)
    bias: bool = False  # on those of `biased`
    output_bias: bool = False
    biased: tuple[str, ...] = ("q", "k", "v")
    scaled: tuple[str, ...] = ()  # which of q, k, v and output are multiplied by a number of their own
    sinks: bool = False  # one learned logit a head joins the softmax's denominator (gpt-oss)
    output_gate: bool = False  # q's projection carries a sigmoid gate of the same width (Qwen3.5)
    head_gate: bool = False  # one softplus gate a head, with a projection of its own (Laguna)


@dataclass(frozen=True, slots=True)
class DeltaNetShape:
    """Gated delta net (linear attention): a recurrent state of key_dim x value_dim a value head."""

    n_key_heads: int
    n_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    by_key_head: bool = False
    """How value heads share key heads: in turn (Qwen3.5), or neighbours the same one, whose gates then lie together,
    beta's before alpha's, in one matrix (Qwen3-Next)."""
    in_one: bool = False  # q, k, v and the output's gate in one matrix too (older files of Qwen3-Next)

    @property
    def channels(self) -> int:
        """Width of queries, keys and values together, which the short convolution runs over."""
        return 2 * self.n_key_heads * self.key_dim + self.n_value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class MlaShape:
    """Multi-head latent attention: keys and values come from one latent of `kv_lora_rank` a token."""

    n_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    value_dim: int
    rope: RopeShape  # rope.dims is the rotated part that all heads share
    window: int | None = None
    scale: float | None = None  # of the logits; None: (nope_dim + rope.dims) ** -0.5
    joined: bool = False  # keys' and values' matrices are one, `attn_kv_b`, head by head
    temperature: TemperatureShape | None = None

    @property
    def logit_scale(self) -> float:
        """What a query's product with a key is multiplied by."""
        return float((self.nope_dim + self.rope.dims) ** -0.5) if self.scale is None else self.scale


Mixer = AttentionShape | DeltaNetShape | MlaShape


@dataclass(frozen=True, slots=True)
class DenseFfn:
    """SwiGLU: down(silu(gate(x)) * up(x)), or the same with another activation."""

    n_ff: int
    activation: Activation = "silu"
    post_norm: bool = False  # another norm, before the residual is added (Gemma)
    biased: tuple[str, ...] = ()  # which of gate, up and down have biases
    scaled: tuple[str, ...] = ()  # and which are multiplied by a number of their own


@dataclass(frozen=True, slots=True)
class MoeFfn:
    """`n_used` of `n_experts` SwiGLU experts a token, plus an optional shared one that all tokens use."""

    n_experts: int
    n_used: int
    n_ff_expert: int
    n_ff_shared: int = 0
    shared_gate: bool = False  # a sigmoid gate on the shared expert (qwen2moe, Qwen3.5)
    scoring: Scoring = "softmax"
    normalise: bool = True  # chosen weights divided by their sum
    scale: float = 1.0
    n_groups: int = 1  # experts are chosen within the `n_groups_used` groups that score best (DeepSeek-V3)
    n_groups_used: int = 1
    weighs_input: bool = False  # a chosen expert's weight counts on what it reads, not on what it gives (Llama 4)
    score_bias: bool = False  # added for the choice only (DeepSeek, GLM)
    expert_bias: bool = False  # gpt-oss
    scaled: tuple[str, ...] = ()  # which of gate, up and down are multiplied by a number an expert
    activation: Activation = "silu"


Ffn = DenseFfn | MoeFfn


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One transformer block: a token mixer, then a feed-forward part."""

    mixer: Mixer
    ffn: Ffn
    residual_scale: float = 1.0  # of what either part adds (Granite)

    @property
    def moe(self) -> MoeFfn | None:
        """The FFN where it is a mixture of experts; None where it is dense."""
        return self.ffn if isinstance(self.ffn, MoeFfn) else None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A whole decoder. `notes` names what is approximated; it is shown in manifest and report."""

    name: str
    architecture: str
    n_vocab: int
    hidden: int
    layers: tuple[LayerShape, ...]
    norm_eps: float
    tied_embeddings: bool = False
    output_bias: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None  # logits are cap * tanh(logits / cap)
    context_length: int = 131072
    keeps_rows: bool = False  # whether all rows go through the last layer whatever logits are wanted
    notes: tuple[str, ...] = ()

    @property
    def most_experts(self) -> int:
        """Experts of the layer that has most; 0 where all layers are dense."""
        return max((layer.moe.n_experts for layer in self.layers if layer.moe is not None), default=0)

    @property
    def output_tensor(self) -> str:
        """The name of the matrix that turns the last hidden row into logits."""
        return "token_embd.weight" if self.tied_embeddings else "output.weight"

    def sliced(self, n_layers: int) -> ModelShape:
        """The same model with only its first `n_layers` layers."""
        return replace(self, layers=self.layers[:n_layers])


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
        return layer_of(self.name)

    @property
    def short_name(self) -> str:
        """The name without `blk.N.`."""
        return short_name_of(self.name)


@lru_cache(maxsize=_MOST_NAMES)
def layer_of(name: str) -> int | None:
    """The block number in a tensor's name, `blk.N.…`; None for tensors outside the blocks."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "blk" else None


@lru_cache(maxsize=_MOST_NAMES)
def short_name_of(name: str) -> str:
    """A tensor's name without `blk.N.`."""
    return name.split(".", 2)[2] if name.startswith("blk.") else name


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
        return self.shape.most_experts > 0

    @property
    def n_bytes(self) -> int:
        """All weights as they are stored."""
        return sum(t.n_bytes for t in self.tensors.values())

    @property
    def n_parameters(self) -> int:
        """How many weights there are, all tensors counted."""
        return sum(math.prod(t.shape) for t in self.tensors.values())
