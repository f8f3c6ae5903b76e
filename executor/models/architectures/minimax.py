"""MiniMax-M2: experts, norms over all heads of queries and of keys together, part of each head rotated."""

from __future__ import annotations

from dataclasses import replace

from executor.model import AttentionShape
from executor.models.architectures.attention import read_attention
from executor.models.architectures.base import Architecture, ModelFile


def _attention(file: ModelFile, layer: int) -> AttentionShape:
    return replace(read_attention(file, layer), qk_norm_joint=True)


MINIMAX = {
    "minimax-m2": Architecture(
        mixer=_attention,
        qk_norm="always",
        scoring="sigmoid",
        router_keys=("expert_gating_func",),
        requires=("output.weight", "exp_probs_b.bias"),
    ),
}
