"""DeepSeek-V2 and later: latent attention, experts in groups. Kimi K2 and Mistral Large 3 are stored as it too."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from executor.errors import HprofError
from executor.model import Ffn, MlaShape, MoeFfn, RopeShape
from executor.models.architectures.attention import read_temperature
from executor.models.architectures.base import ROUTER_KEYS, Architecture, ModelFile
from executor.models.architectures.ffn import read_ffn
from executor.models.architectures.rope import read_rope

_GLM_LAYERS: Final = (47, 48)  # GLM-4.7-Flash, which llama.cpp knows by these numbers
_GLM_VOCABULARY: Final = 154880


def read_mla(file: ModelFile, layer: int) -> MlaShape:
    """The latent attention of layer number `layer`; older files keep the matrices of keys and values joined."""
    fields = file.fields
    n_heads = fields.integers("attention.head_count", file.n_layers)[layer]
    joined = not fields.has("attention.key_length_mla")
    end = "" if joined else "_mla"
    key_dim = fields.integer(f"attention.key_length{end}", file.hidden // n_heads)
    rope = read_rope(file, key_dim)
    if rope.dims >= key_dim:
        raise HprofError(
            f"{fields.origin}: {rope.dims} rotated dimensions leave nothing of keys as wide as {key_dim}; "
            "the file is damaged, fetch or convert it again."
        )
    rope, scale = _yarn_on_logits(file, rope)
    return MlaShape(
        n_heads=n_heads,
        q_lora_rank=None if file.has(layer, "attn_q.weight") else fields.integer("attention.q_lora_rank"),
        kv_lora_rank=fields.integer("attention.kv_lora_rank"),
        nope_dim=key_dim - rope.dims,
        value_dim=fields.integer(f"attention.value_length{end}", file.hidden // n_heads),
        rope=rope,
        scale=scale / math.sqrt(key_dim),
        joined=joined,
        temperature=read_temperature(file),
    )


def _yarn_on_logits(file: ModelFile, rope: RopeShape) -> tuple[RopeShape, float]:
    """The rotation, and what the logits are multiplied by besides, as llama.cpp has it (src/models/deepseek2.cpp).

    A log multiplier, of which the file holds a tenth, takes YaRN's magnitude from the rotation to the logits. Without
    it the logits have it twice more, whatever the file's model was trained with.
    """
    multiplier = 10.0 * file.fields.number("rope.scaling.yarn_log_multiplier", 0.0, or_zero=True)
    stretch = 0.0 if rope.scaling == "none" else math.log(rope.factor)
    if multiplier and rope.scaling == "yarn":
        rope = replace(rope, attention_factor=file.fields.number("rope.scaling.attn_factor", 1.0))
    magnitude = rope.attention_factor * (1.0 + 0.1 * multiplier * stretch)
    if rope.scaling == "linear":
        magnitude *= 1.0 + 0.1 * stretch
    return rope, magnitude * magnitude


def read_layer_ffn(file: ModelFile, layer: int) -> Ffn:
    """Experts behind the leading dense layers. Early files of one model do not say that its router is a sigmoid."""
    ffn = read_ffn(file, layer)
    is_glm = file.n_layers in _GLM_LAYERS and file.tensors["token_embd.weight"].shape[0] == _GLM_VOCABULARY
    is_unsaid = not file.fields.integer("expert_gating_func", 0, low=0)
    return replace(ffn, scoring="sigmoid") if isinstance(ffn, MoeFfn) and is_glm and is_unsaid else ffn


DEEPSEEK = {
    "deepseek2": Architecture(
        mixer=read_mla,
        ffn=read_layer_ffn,
        interleaved_rope=True,
        normalise=False,
        router_keys=ROUTER_KEYS,
        leading_dense=True,
    ),
}
