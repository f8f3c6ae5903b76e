"""A GGUF file to a Model: the architectures that hprof runs, and the check that a file holds what they need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from executor.errors import HprofError, did_you_mean
from executor.model import (
    Activation,
    AttentionShape,
    DenseFfn,
    Ffn,
    LayerShape,
    Model,
    ModelShape,
    MoeFfn,
    RopeShape,
    Scoring,
    TensorInfo,
    WeightSource,
)
from executor.models.checks import Fields, check_shape
from executor.models.tensors import all_shapes
from executor.quants import QUANTS

Tensors = Mapping[str, TensorInfo]

_MAX_ROPE_FACTORS: Final = 4096
_GATING_FUNCTIONS: Final[dict[int, Scoring]] = {1: "softmax", 2: "sigmoid", 3: "softmax_topk"}


@dataclass(frozen=True, slots=True)
class _Architecture:
    """What llama.cpp's code for an architecture knows and its files do not say."""

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


ARCHITECTURES: Final[dict[str, _Architecture]] = {
    "llama": _Architecture(interleaved_rope=True),
    "qwen2": _Architecture(output_bias=True),
    "qwen2moe": _Architecture(normalise=False, shared_gate=True, splits_n_ff=True),
    "qwen3": _Architecture(qk_norm="always"),
    "qwen3moe": _Architecture(qk_norm="always", splits_n_ff=True),
    "glm4moe": _Architecture(qk_norm="optional", scoring="sigmoid", normalise=False, reads_router_keys=True),
    "gpt-oss": _Architecture(
        sinks=True, window_every=2, scoring="softmax_topk", normalise=False, activation="oai_swiglu"
    ),
}


def model_from_gguf(path: str) -> Model:
    """The model in a GGUF file, or in the parts of which `path` is the first: its shape, and the tensors it needs.

    Raises HprofError where the file is damaged, or describes what hprof does not run.
    """
    from executor.gguf.file import open_gguf
    from executor.gguf.fused import FusedSource, fused_parts, with_parts

    file = open_gguf(Path(path))
    shape = shape_from_gguf(file.metadata, file.tensors, path, _rope_factors(path, file, file.tensors))
    parts = fused_parts(shape, file.tensors)
    tensors = needed_tensors(shape, with_parts(file.tensors, parts))
    return Model(shape, tensors, FusedSource(file, parts) if parts else file, path)


def _rope_factors(path: str, source: WeightSource, tensors: Tensors) -> tuple[float, ...]:
    """The numbers of `rope_freqs.weight`: few, needed before any layer runs, and so part of the shape."""
    import torch

    info = tensors.get("rope_freqs.weight")
    if info is None:
        return ()
    if info.quant != "F32" or len(info.shape) != 1 or info.shape[0] > _MAX_ROPE_FACTORS:
        raise HprofError(
            f"{path}: rope_freqs.weight is {info.quant} of shape {info.shape}, but must be a short F32 vector; "
            "the file is damaged, fetch or convert it again."
        )
    raw = torch.empty(info.n_bytes, dtype=torch.uint8)
    source.read_into(info.name, raw)
    return tuple(raw.view(torch.float32).tolist())


def shape_from_gguf(
    metadata: Mapping[str, Any], tensors: Tensors, origin: str, rope_factors: tuple[float, ...] = ()
) -> ModelShape:
    """The model that a GGUF file describes.

    `rope_factors` are the numbers in its `rope_freqs.weight`, where it has that tensor. HprofError where the
    architecture is not known, a key is missing or senseless, or a tensor is absent or of another shape.
    """
    from executor.gguf.fused import fused_parts, with_parts

    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise _unknown_architecture(name, origin)
    fields = Fields(metadata, origin, f"{name}.")
    _check_keys(fields)
    reader = _GgufReader(name, ARCHITECTURES[name], fields, tensors, rope_factors)
    shape = check_shape(reader.model(), origin)
    apart = with_parts(tensors, fused_parts(shape, tensors))
    _check_tensors(shape, apart, origin)
    return replace(shape, notes=(*shape.notes, *left_out(shape, apart, origin)))


def needed_tensors(shape: ModelShape, tensors: Tensors) -> dict[str, TensorInfo]:
    """Of a file's tensors those that a forward pass of `shape` reads, in the file's order."""
    names = {name for name, _ in all_shapes(shape)}
    return {name: info for name, info in tensors.items() if name in names}


@dataclass(frozen=True, slots=True)
class _GgufReader:
    name: str
    architecture: _Architecture
    fields: Fields
    tensors: Tensors
    rope_factors: tuple[float, ...]

    def model(self) -> ModelShape:
        fields = self.fields
        n_vocab, hidden = self._vocabulary()
        n_layers = fields.integer("block_count") - fields.integer("nextn_predict_layers", 0, low=0)
        if not 1 <= n_layers <= len(self.tensors):
            raise HprofError(
                f"{fields.origin}: its metadata say {n_layers} layers, but it holds {len(self.tensors)} tensors; "
                "the file is damaged, fetch it again."
            )
        return ModelShape(
            name=str(fields.values.get("general.name", "unnamed"))[:80],
            architecture=self.name,
            n_vocab=n_vocab,
            hidden=hidden,
            layers=self._layers(n_layers, hidden),
            norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
            tied_embeddings="output.weight" not in self.tensors,
            output_bias=self.architecture.output_bias and "output.bias" in self.tensors,
            context_length=fields.integer("context_length", 131072),
        )

    def _vocabulary(self) -> tuple[int, int]:
        hidden = self.fields.integer("embedding_length")
        embedding = self.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise HprofError(
                f"{self.fields.origin}: the tensor token_embd.weight, a matrix, is missing; "
                "the file holds no whole model (a split file or an adapter?): join or convert it again."
            )
        return embedding.shape[0], hidden

    def _layers(self, n_layers: int, hidden: int) -> tuple[LayerShape, ...]:
        heads = self.fields.integers("attention.head_count", n_layers)
        kv_heads = self.fields.integers("attention.head_count_kv", n_layers, default=heads[0])
        rope = self._rope(hidden // heads[0])
        return tuple(
            LayerShape(self._attention(i, heads[i], kv_heads[i], hidden, rope), self._ffn(i, n_layers))
            for i in range(n_layers)
        )

    def _attention(self, i: int, heads: int, kv_heads: int, hidden: int, rope: RopeShape) -> AttentionShape:
        fields, known = self.fields, self.architecture
        head_dim, window = fields.integer("attention.key_length", hidden // heads), self._window(i)
        if window is not None:
            rope = replace(rope, theta=fields.number("rope.freq_base_swa", rope.theta, above=1.0))
        if fields.integer("attention.value_length", head_dim) != head_dim:
            raise HprofError(
                f"{fields.origin}: its values are not as wide as its keys, which hprof does not run with the "
                f"architecture {self.name}; use a model without that."
            )
        biased = tuple(name for name in "qkv" if self._has(i, f"attn_{name}.bias", "attn_qkv.bias"))
        return AttentionShape(
            n_heads=heads,
            n_kv_heads=kv_heads,
            head_dim=head_dim,
            rope=rope,
            window=window,
            qk_norm=self._has_qk_norm(i),
            bias=bool(biased),
            biased=biased or ("q", "k", "v"),
            output_bias=self._has(i, "attn_output.bias"),
            sinks=known.sinks,
        )

    def _has_qk_norm(self, i: int) -> bool:
        rule = self.architecture.qk_norm
        return rule == "always" or (rule == "optional" and f"blk.{i}.attn_q_norm.weight" in self.tensors)

    def _window(self, i: int) -> int | None:
        """Of each so many layers all but the last have the window; of 0, all; a list says it of each layer."""
        every, key = self.architecture.window_every, "attention.sliding_window_pattern"
        if every is None:
            return None
        if isinstance(self.fields.values.get(self.fields.prefix + key), list):
            has_window = any(self.fields.flags(key)[i : i + 1])
        else:
            every = self.fields.integer(key, every, low=0)
            has_window = every == 0 or i % every < every - 1
        return self.fields.integer("attention.sliding_window") if has_window else None

    def _rope(self, default_dims: int) -> RopeShape:
        fields = self.fields
        plain = RopeShape(
            theta=fields.number("rope.freq_base", 10000.0, above=1.0),
            dims=fields.integer("rope.dimension_count", fields.integer("attention.key_length", default_dims)),
            interleaved=self.architecture.interleaved_rope,
            factors=self.rope_factors,
        )
        factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
        match fields.text("rope.scaling.type", "linear" if factor != 1.0 else "none"):
            case "none":
                return plain
            case "linear":
                return replace(plain, scaling="linear", factor=factor)
            case "yarn":
                return self._yarn(plain, factor)
            case other:
                raise HprofError(
                    f"{fields.origin}: its rope scaling {other[:40]!r} is not known; known are none, linear and yarn."
                )

    def _yarn(self, plain: RopeShape, factor: float) -> RopeShape:
        fields = self.fields
        trained = fields.integer("context_length", 131072)
        return replace(
            plain,
            scaling="yarn",
            factor=factor,
            original_context=fields.integer("rope.scaling.original_context_length", trained),
            attention_factor=fields.number("rope.scaling.attn_factor", 1.0) * (1.0 + 0.1 * math.log(max(factor, 1.0))),
        )

    def _ffn(self, i: int, n_layers: int) -> Ffn:
        if not self.fields.integer("expert_count", 0, low=0) or self._is_dense(i):
            return DenseFfn(self.fields.integers("feed_forward_length", n_layers)[i])
        return self._moe(i)

    def _is_dense(self, i: int) -> bool:
        return i < self.fields.integer("leading_dense_block_count", 0, low=0)

    def _moe(self, i: int) -> MoeFfn:
        fields, known = self.fields, self.architecture
        n_experts, n_used = fields.integer("expert_count"), fields.integer("expert_used_count")
        shared = self._has(i, "ffn_up_shexp.weight")
        n_ff = fields.integer("expert_feed_forward_length", self._default_n_ff_expert(n_used))
        n_shared = fields.integer("expert_shared_count", 1)
        return MoeFfn(
            n_experts=n_experts,
            n_used=n_used,
            n_ff_expert=n_ff,
            n_ff_shared=fields.integer("expert_shared_feed_forward_length", n_shared * n_ff) if shared else 0,
            shared_gate=shared and known.shared_gate,
            scoring=self._scoring(),
            normalise=fields.flag("expert_weights_norm", known.normalise)
            if known.reads_router_keys
            else known.normalise,
            scale=fields.number("expert_weights_scale", 1.0) if known.reads_router_keys else 1.0,
            score_bias=self._has(i, "exp_probs_b.bias"),
            expert_bias=self._has(i, "ffn_up_exps.bias", "ffn_gate_up_exps.bias"),
            activation=known.activation,
        )

    def _scoring(self) -> Scoring:
        known, fields = self.architecture, self.fields
        gating = fields.integer("expert_gating_func", 0, low=0) if known.reads_router_keys else 0
        if gating and gating not in _GATING_FUNCTIONS:
            raise HprofError(
                f"{fields.origin}: its router's gating function {gating} is not known; known are 1 (softmax), "
                "2 (sigmoid) and 3 (softmax over the chosen)."
            )
        return _GATING_FUNCTIONS.get(gating, known.scoring)

    def _default_n_ff_expert(self, n_used: int) -> int | None:
        """An expert's width where the file does not say it, as llama.cpp's code for the architecture has it."""
        if not self.fields.has("feed_forward_length"):
            return None
        n_ff = self.fields.integer("feed_forward_length")
        return n_ff // n_used if self.architecture.splits_n_ff else n_ff

    def _has(self, layer: int, *short_names: str) -> bool:
        """Whether the file has one of the tensors."""
        return any(f"blk.{layer}.{name}" in self.tensors for name in short_names)


def _check_keys(fields: Fields) -> None:
    """Refuse, by name, keys that change what a model computes and that no layer here obeys."""
    if not fields.flag("attention.causal", True):
        raise _not_obeyed(fields, "attention.causal", "false: tokens see those after them")
    if (n_groups := fields.integer("expert_group_count", 1, low=0)) > 1:
        raise _not_obeyed(fields, "expert_group_count", f"{n_groups}: experts are chosen within groups")


def _not_obeyed(fields: Fields, key: str, meaning: str) -> HprofError:
    return HprofError(
        f"{fields.origin}: its key {fields.prefix}{key} is {meaning}, which hprof does not compute; "
        "use --engine llama-bench for this file."
    )


_OF_THE_DECODER: Final = ("blk.", "output", "token_", "position_", "rope_")
_HARMLESS: Final = ("rope_freqs.weight", "attn_rot_embd.weight")  # read with the shape; a table that old files hold


def left_out(shape: ModelShape, tensors: Tensors, origin: str) -> list[str]:
    """A sentence on the tensors that belong to no layer that hprof runs, such as a vision tower's.

    HprofError names one that would change what the layers compute, as llama.cpp refuses a file with unread tensors.
    """
    read = {name for name, _ in all_shapes(shape)}
    unread = [info for info in tensors.values() if info.name not in read and info.short_name not in _HARMLESS]
    for info in unread:
        of_the_layers = info.name.startswith(_OF_THE_DECODER) or info.name.endswith(".scale")
        if of_the_layers and (info.layer is None or info.layer < len(shape.layers)):
            raise HprofError(
                f"{origin}: the tensor {info.name} is none that hprof reads for the architecture {shape.architecture}, "
                "and without it the results would be others; use --engine llama-bench for this file."
            )
    outer = [info.name for info in unread if info.layer is None]
    more = f" and {len(outer) - 1} more" if len(outer) > 1 else ""
    return [f"the tensor {outer[0]}{more} of the file is left out, as no layer reads it"] if outer else []


def _check_tensors(shape: ModelShape, tensors: Tensors, origin: str) -> None:
    for name, dims in all_shapes(shape):
        info = tensors.get(name)
        if info is None:
            raise HprofError(
                f"{origin}: the tensor {name} is missing, which the architecture {shape.architecture} needs; "
                "the file is incomplete, join its parts or convert the model again."
            )
        if info.quant not in QUANTS:
            raise HprofError(
                f"{origin}: tensor {name!r} is stored as {info.quant}, which hprof does not know; "
                f"convert the model to one of {', '.join(QUANTS)}."
            )
        if _without_ones(info.shape) != _without_ones(dims):  # some files write a vector as a matrix of one row
            raise HprofError(
                f"{origin}: the tensor {name} has the shape {info.shape}, but the metadata ask for {dims}; "
                "the file is damaged, fetch or convert it again."
            )


def _without_ones(dims: tuple[int, ...]) -> list[int]:
    return [dim for dim in dims if dim != 1]


def _unknown_architecture(name: object, origin: str) -> HprofError:
    known = ", ".join(ARCHITECTURES)
    if not isinstance(name, str):
        return HprofError(f"{origin} does not say its architecture; hprof runs {known}.")
    near = did_you_mean(name, ARCHITECTURES)
    hint = f" ({near.removesuffix('?').removesuffix('.')})" if near else ""
    return HprofError(
        f"{origin}: the architecture {name[:40]!r} is not known; hprof runs {known}{hint}; --engine llama-bench "
        "measures the file if llama.cpp runs it, and a preset or the model's config.json, with --device sim, its shape."
    )
