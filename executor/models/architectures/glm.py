"""GLM-4 and GLM-4.5."""

from __future__ import annotations

from dataclasses import replace

from executor.errors import HprofError
from executor.model import AttentionShape, DenseFfn
from executor.models.architectures.attention import read_attention
from executor.models.architectures.base import ROUTER_KEYS, Architecture, ModelFile
from executor.models.architectures.ffn import read_dense

_SECTIONS = "rope.dimension_sections"


def _attention(file: ModelFile, layer: int) -> AttentionShape:
    if file.fields.has(_SECTIONS) and any(file.fields.integers(_SECTIONS, 4, low=0, of="sections")):
        raise HprofError(
            f"{file.fields.origin}: its key {file.fields.prefix}{_SECTIONS} says that it sees, and such models rotate "
            "other pairs, which hprof does not compute; use --engine llama-bench for this file."
        )
    return replace(read_attention(file, layer), post_norm=True)


def _ffn(file: ModelFile, layer: int) -> DenseFfn:
    return replace(read_dense(file, layer), post_norm=True)


GLM = {
    "glm4": Architecture(mixer=_attention, ffn=_ffn, interleaved_rope=True),
    "glm4moe": Architecture(
        qk_norm="optional",
        scoring="sigmoid",
        normalise=False,
        router_keys=ROUTER_KEYS,
        leading_dense=True,
        requires=("exp_probs_b.bias",),
    ),
}
