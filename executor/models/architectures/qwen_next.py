"""Qwen3-Next and Qwen3.5: of each few layers all but the last are gated delta nets, the last has gated attention."""

from __future__ import annotations

from dataclasses import replace

from executor.model import AttentionShape, DeltaNetShape
from executor.models.architectures.attention import read_attention
from executor.models.architectures.base import Architecture, ModelFile


def _next_mixer(file: ModelFile, layer: int) -> AttentionShape | DeltaNetShape:
    if _is_recurrent(file, layer):
        return replace(_delta_net(file), by_key_head=True, in_one=file.has(layer, "ssm_in.weight"))
    return _gated_attention(file, layer)


def _mixer(file: ModelFile, layer: int) -> AttentionShape | DeltaNetShape:
    return _delta_net(file) if _is_recurrent(file, layer) else _gated_attention(file, layer)


def _gated_attention(file: ModelFile, layer: int) -> AttentionShape:
    return replace(read_attention(file, layer), output_gate=True)


def _is_recurrent(file: ModelFile, layer: int) -> bool:
    """A list says it of each layer; else every so many layers one has attention."""
    key = "attention.recurrent_layers"
    if not file.fields.has(key):
        return (layer + 1) % file.fields.integer("full_attention_interval", 4) != 0
    flags = file.fields.flags(key)
    if len(flags) < file.n_layers:
        raise file.fields.refusal(key, flags, f"true or false for each of {file.n_layers} layers")
    return flags[layer]


def _delta_net(file: ModelFile) -> DeltaNetShape:
    fields = file.fields
    n_value_heads, state = fields.integer("ssm.time_step_rank"), fields.integer("ssm.state_size")
    inner = fields.integer("ssm.inner_size")
    if inner != n_value_heads * state:
        raise fields.refusal("ssm.inner_size", inner, f"{n_value_heads} heads of {state}")
    return DeltaNetShape(
        n_key_heads=fields.integer("ssm.group_count"),
        n_value_heads=n_value_heads,
        key_dim=state,
        value_dim=state,
        conv_width=fields.integer("ssm.conv_kernel", low=2),
    )


QWEN_NEXT = {
    "qwen3next": Architecture(mixer=_next_mixer, qk_norm="always", shared="always", splits_n_ff=True),
    "qwen35": Architecture(mixer=_mixer, sections="in turn", qk_norm="always"),
    "qwen35moe": Architecture(mixer=_mixer, sections="in turn", qk_norm="always", shared="always", splits_n_ff=True),
}
