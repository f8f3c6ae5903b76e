"""Grouped-query attention as a file's keys and tensors describe it."""

from __future__ import annotations

from dataclasses import replace

from executor.errors import HprofError
from executor.model import AttentionShape, TemperatureShape
from executor.models.architectures.base import ModelFile
from executor.models.architectures.rope import read_rope


def read_attention(file: ModelFile, layer: int) -> AttentionShape:
    """The attention of layer number `layer`."""
    fields = file.fields
    all_heads = fields.integers("attention.head_count", file.n_layers)
    heads = all_heads[layer]
    head_dim, window = fields.integer("attention.key_length", file.hidden // heads), read_window(file, layer)
    rope = read_rope(file, file.hidden // all_heads[0])
    if window is not None:
        rope = replace(rope, theta=fields.number("rope.freq_base_swa", rope.theta, above=1.0))
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise HprofError(
            f"{fields.origin}: its values are not as wide as its keys, which hprof does not run with the "
            f"architecture {file.name}; use a model without that."
        )
    biased = tuple(name for name in "qkv" if file.has(layer, f"attn_{name}.bias", "attn_qkv.bias"))
    return AttentionShape(
        n_heads=heads,
        n_kv_heads=fields.integers("attention.head_count_kv", file.n_layers, default=all_heads[0])[layer],
        head_dim=head_dim,
        rope=rope,
        window=window,
        qk_norm=_has_qk_norm(file, layer),
        bias=bool(biased),
        biased=biased or ("q", "k", "v"),
        output_bias=file.has(layer, "attn_output.bias"),
        scaled=file.scaled(layer, "attn_{}", "q", "k", "v", "output"),
        sinks=file.architecture.sinks,
    )


def read_window(file: ModelFile, layer: int) -> int | None:
    """The sliding window of layer number `layer`, where the architecture has such layers and it is one of them."""
    every = file.architecture.window_every
    if every is None or (file.architecture.window_optional and not _states_window(file)):
        return None
    if not has_window(file, layer, every):
        return None
    return file.fields.integer("attention.sliding_window")


def has_window(file: ModelFile, layer: int, every: int) -> bool:
    """Of each `every` layers all but the last have it; of 0, all. A file states another number, or each layer."""
    key = "attention.sliding_window_pattern"
    if isinstance(file.fields.values.get(file.fields.prefix + key), list):
        return any(file.fields.flags(key)[layer : layer + 1])
    every = file.fields.integer(key, every, low=0)
    return every == 0 or layer % every < every - 1


def _states_window(file: ModelFile) -> bool:
    return file.fields.integer("attention.sliding_window", 0, low=0) > 0


def _has_qk_norm(file: ModelFile, layer: int) -> bool:
    rule = file.architecture.qk_norm
    return rule == "always" or (rule == "optional" and file.has(layer, "attn_q_norm.weight"))


def read_temperature(file: ModelFile) -> TemperatureShape | None:
    """How queries grow with their position, where the file says that they do."""
    scale = file.fields.number("attention.temperature_scale", 0.0, or_zero=True)
    return TemperatureShape(file.fields.integer("attention.temperature_length"), scale) if scale else None
