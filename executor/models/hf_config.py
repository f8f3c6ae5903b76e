"""A Hugging Face `config.json` as a shape: transformers' dense and mixture-of-experts families, by their own keys.

The file may be anything at all: it is read with a bound, and says what its weights are published in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from executor.errors import HprofError
from executor.files import bounded_read
from executor.model import (
    AttentionShape,
    DeltaNetShape,
    DenseFfn,
    Ffn,
    LayerShape,
    Mixer,
    MlaShape,
    ModelShape,
    MoeFfn,
    RopeShape,
)
from executor.models.checks import Fields, check_shape
from executor.models.hf_families import MODEL_FAMILIES, ModelFamily
from executor.models.synthetic import QuantPlan

_MAX_LAYERS: Final = 1000
_LAYER_TYPES: Final = ("full_attention", "sliding_attention", "linear_attention")
_PATTERN: Final = "sliding_window_pattern"  # Gemma's word for full_attention_interval
_MAX_BYTES: Final = 2**20
_QUANTS: Final = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def read_config(path: Path) -> tuple[ModelShape, QuantPlan]:
    """The shape that a config describes, and the quant types that its weights are published in.

    HprofError where the file is absent, no such JSON, of an unknown family, or states what cannot be.
    """
    values = read_json(path)
    shape = shape_from_config(values, path.parent.name or path.stem, str(path))
    quants, notes = published_quants(values)
    return replace(shape, notes=(*shape.notes, *notes)), quants


def shape_from_config(values: Mapping[str, object], name: str, origin: str) -> ModelShape:
    """The shape that a config's parsed JSON describes; `origin` names it in messages."""
    known = ", ".join(MODEL_FAMILIES)
    if values.get("model_type") is None:
        raise HprofError(f"{origin} states no model_type; name a model's config.json, of one of the types {known}.")
    family = str(values["model_type"]).removesuffix("_text")
    if family not in MODEL_FAMILIES:
        raise HprofError(f"{origin}: the model type {family[:40]!r} is not known; known are {known}.")
    stated = {**MODEL_FAMILIES[family].defaults, **values}
    return check_shape(_ConfigReader(MODEL_FAMILIES[family], Fields(stated, origin)).model(name), origin)


@dataclass(frozen=True, slots=True)
class _ConfigReader:
    family: ModelFamily
    fields: Fields

    def model(self, name: str) -> ModelShape:
        fields = self.fields
        n_layers = fields.integer("num_hidden_layers")
        if n_layers > _MAX_LAYERS:
            raise fields.refusal("num_hidden_layers", n_layers, f"at most {_MAX_LAYERS}")
        kinds = self._kinds(n_layers)
        mixers = {kind: self._mixer(kind) for kind in dict.fromkeys(kinds)}
        hidden = fields.integer("hidden_size")
        residual = self._multiplier("residual_multiplier") or 1.0
        return ModelShape(
            name=name,
            architecture=self.family.architecture,
            n_vocab=fields.integer("vocab_size"),
            hidden=hidden,
            layers=tuple(LayerShape(mixers[kind], self._ffn(i), residual) for i, kind in enumerate(kinds)),
            norm_eps=fields.number("rms_norm_eps", 1e-6),
            tied_embeddings=fields.flag("tie_word_embeddings", False),
            embedding_scale=math.sqrt(hidden) if self.family.is_gemma else fields.number("embedding_multiplier", 1.0),
            logit_scale=1.0 / (self._multiplier("logits_scaling") or 1.0),
            logit_cap=fields.number("final_logit_softcapping", 0.0, or_zero=True) or None,
            context_length=fields.integer("max_position_embeddings", 131072),
            notes=self.family.notes,
        )

    def _multiplier(self, key: str) -> float | None:
        return self.fields.number(key, 1.0) if self.family.has_multipliers else None

    def _kinds(self, n_layers: int) -> tuple[str, ...]:
        """Which kind of mixer each layer has."""
        fields, family = self.fields, self.family
        if fields.has("layer_types"):
            return fields.texts("layer_types", n_layers, _LAYER_TYPES)
        if family.other_kind is not None:
            every = fields.integer("full_attention_interval", fields.integer(_PATTERN, family.full_every))
            return tuple("full_attention" if (i + 1) % every == 0 else family.other_kind for i in range(n_layers))
        slides = fields.has("sliding_window") and fields.flag("use_sliding_window", family.slides)
        return ("sliding_attention" if slides else "full_attention",) * n_layers

    def _mixer(self, kind: str) -> Mixer:
        if kind == "linear_attention":
            return self._delta_net()
        return self._mla() if self.family.has_mla else self._attention(kind)

    def _attention(self, kind: str) -> AttentionShape:
        fields, family = self.fields, self.family
        heads = fields.integer("num_attention_heads")
        head_dim = fields.integer("head_dim", fields.integer("hidden_size") // heads)
        bias = fields.flag("attention_bias", family.bias)
        return AttentionShape(
            n_heads=heads,
            n_kv_heads=fields.integer("num_key_value_heads", heads if family.may_omit_kv_heads else None),
            head_dim=head_dim,
            rope=self._rope(kind, head_dim),
            window=fields.integer("sliding_window") if kind == "sliding_attention" else None,
            qk_norm=family.qk_norm or fields.flag("use_qk_norm", False),
            qk_norm_joint=family.qk_norm_joint,
            scale=self._attention_scale(),
            post_norm=family.is_gemma,
            bias=bias,
            output_bias=bias and family.is_gpt_oss,
            sinks=family.is_gpt_oss,
            output_gate=family.output_gate,
        )

    def _attention_scale(self) -> float | None:
        """What logits are multiplied by: Gemma states a width, Granite the number; None: head_dim ** -0.5."""
        if self.family.is_gemma and self.fields.has("query_pre_attn_scalar"):
            return float(self.fields.number("query_pre_attn_scalar") ** -0.5)
        return self._multiplier("attention_multiplier")

    def _delta_net(self) -> DeltaNetShape:
        fields = self.fields
        return DeltaNetShape(
            n_key_heads=fields.integer("linear_num_key_heads", 16),
            n_value_heads=fields.integer("linear_num_value_heads", 32),
            key_dim=fields.integer("linear_key_head_dim", 128),
            value_dim=fields.integer("linear_value_head_dim", 128),
            conv_width=fields.integer("linear_conv_kernel_dim", 4, low=2),
            by_key_head=self.family.architecture == "qwen3next",
        )

    def _mla(self) -> MlaShape:
        fields = self.fields
        rotated = fields.integer("qk_rope_head_dim")
        return MlaShape(
            n_heads=fields.integer("num_attention_heads"),
            q_lora_rank=fields.integer("q_lora_rank") if fields.has("q_lora_rank") else None,
            kv_lora_rank=fields.integer("kv_lora_rank"),
            nope_dim=fields.integer("qk_nope_head_dim"),
            value_dim=fields.integer("v_head_dim"),
            rope=self._rope("full_attention", rotated),
        )

    def _rope(self, kind: str, head_dim: int) -> RopeShape:
        """Newer configs say it in `rope_parameters`, for all layers or for each kind; older ones in two places."""
        fields = self.fields
        stated = fields.table("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")
        if stated.has(kind):
            stated = stated.table(kind)
        elif kind == "sliding_attention" and (theta := self.family.windows_theta):
            return RopeShape(theta=fields.number("rope_local_base_freq", theta, above=1.0), dims=head_dim)
        share = self._rotated(stated, self._rotated(fields, self.family.rotated))
        plain = RopeShape(
            theta=stated.number("rope_theta", fields.number("rope_theta", 10000.0, above=1.0), above=1.0),
            dims=int(head_dim * share),
            interleaved=self.family.architecture in ("llama", "deepseek2"),
        )
        return self._scaled(plain, stated)

    def _rotated(self, fields: Fields, default: float) -> float:
        """Which part of a head is rotated."""
        share = fields.number("partial_rotary_factor", default)
        if share > 1:
            raise fields.refusal("partial_rotary_factor", share, "a number from 0 to 1")
        return share

    def _scaled(self, plain: RopeShape, stated: Fields) -> RopeShape:
        rule = stated.text("rope_type", stated.text("type", "default"))
        if rule in ("default", "mrope", *self.family.unscaled):
            return plain
        factor = stated.number("factor", 1.0)
        if rule == "linear":
            return replace(plain, scaling="linear", factor=factor)
        context = self.fields.integer("max_position_embeddings", 131072)
        original = stated.integer("original_max_position_embeddings", context)
        match rule:
            case "yarn":
                return replace(
                    plain,
                    scaling="yarn",
                    factor=factor,
                    original_context=original,
                    attention_factor=stated.number("attention_factor", _yarn_attention_factor(stated, factor)),
                    beta_fast=stated.number("beta_fast", 32.0),
                    beta_slow=stated.number("beta_slow", 1.0),
                )
            case "llama3":
                return replace(
                    plain,
                    scaling="llama3",
                    factor=factor,
                    original_context=original,
                    low_frequency_factor=stated.number("low_freq_factor", 1.0),
                    high_frequency_factor=stated.number("high_freq_factor", 4.0),
                )
        raise stated.refusal("rope_type", rule, "default, linear, yarn or llama3")

    def _ffn(self, i: int) -> Ffn:
        fields = self.fields
        family = self.family
        if family.experts is None or not self._is_moe(i):
            n_ff = fields.integer("intermediate_size")
            return DenseFfn(n_ff, "gelu", post_norm=True) if family.is_gemma else DenseFfn(n_ff)
        width = fields.integer(family.expert_width)
        shared = fields.integer("n_shared_experts", 0, low=0) * width
        n_groups = fields.integer("n_group", 1)
        return MoeFfn(
            n_experts=fields.integer(family.experts),
            n_used=fields.integer("num_experts_per_tok"),
            n_ff_expert=width,
            n_ff_shared=fields.integer("shared_expert_intermediate_size", shared, low=0),
            shared_gate=fields.has("shared_expert_intermediate_size"),
            scoring=family.scoring,
            normalise=fields.flag("norm_topk_prob", family.normalise),
            scale=fields.number("routed_scaling_factor", 1.0),
            n_groups=n_groups,
            n_groups_used=fields.integer("topk_group") if n_groups > 1 else 1,
            score_bias=family.scoring == "sigmoid",
            expert_bias=family.is_gpt_oss,
            activation="oai_swiglu" if family.is_gpt_oss else "silu",
        )

    def _is_moe(self, i: int) -> bool:
        fields = self.fields
        dense = fields.values.get("mlp_only_layers") or []
        if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
            raise fields.refusal("mlp_only_layers", dense, "a list of layer numbers")
        every = fields.integer("decoder_sparse_step", 1)
        return i >= fields.integer("first_k_dense_replace", 0, low=0) and (i + 1) % every == 0 and i not in dense


def _yarn_attention_factor(stated: Fields, factor: float) -> float:
    """transformers' `_compute_yarn_parameters`: DeepSeek states two scales, whose ratio counts."""

    def scale(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if stated.has("mscale") and stated.has("mscale_all_dim"):
        return scale(stated.number("mscale")) / scale(stated.number("mscale_all_dim"))
    return scale(1.0)


def read_json(path: Path) -> dict[str, Any]:
    """The table in the file; a multi-modal model's is that of its language part. HprofError where there is none."""
    try:
        content = bounded_read(path, _MAX_BYTES, "a model's config", "name a model's config.json")
        values = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise HprofError(f"{path} is not JSON ({str(error)[:80]}); name a model's config.json.") from error
    if not isinstance(values, dict):
        raise HprofError(f"{path} holds no JSON object; name a model's config.json.")
    text = values.get("text_config")
    if not isinstance(text, dict):
        return values
    outer = ("model_type", "torch_dtype", "quantization_config")
    return {key: values[key] for key in outer if key in values} | text


def published_quants(values: Mapping[str, object]) -> tuple[QuantPlan, tuple[str, ...]]:
    """The types that the weights are published in, and notes on what stands for types that hprof does not have."""
    dtype = values.get("dtype", values.get("torch_dtype"))
    plain = QuantPlan.uniform(_QUANTS.get(dtype, "BF16") if isinstance(dtype, str) else "BF16")
    stated = values.get("quantization_config")
    method = stated.get("quant_method") if isinstance(stated, Mapping) else None
    match method:
        case None:
            return plain, ()
        case "mxfp4":
            return QuantPlan(plain.weights, "MXFP4", plain.embeddings), ()
        case "fp8":
            note = "FP8 weights are stored as Q8_0, which takes 6 % more bytes"
            return QuantPlan("Q8_0", "Q8_0", plain.embeddings), (note,)
        case _:
            named = str(method)[:40].encode(errors="replace").decode()  # JSON can hold half a surrogate pair
            note = f"{named} weights are stored as {plain.weights}: give --quant for a type of their size"
            return plain, (note,)
