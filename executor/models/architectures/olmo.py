"""OLMoE: experts, and norms over all heads of queries and of keys together."""

from __future__ import annotations

from dataclasses import replace

from executor.model import AttentionShape
from executor.models.architectures.attention import read_attention
from executor.models.architectures.base import Architecture, ModelFile


def _attention(file: ModelFile, layer: int) -> AttentionShape:
    return replace(read_attention(file, layer), qk_norm_joint=True)


OLMO = {"olmoe": Architecture(mixer=_attention, qk_norm="always", normalise=False, requires=("output.weight",))}
