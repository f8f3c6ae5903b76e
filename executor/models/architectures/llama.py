"""Llama and what is stored as it: Mistral up to 2, Mixtral."""

from __future__ import annotations

from executor.models.architectures.base import ATTENTION_SCALES, EXPERT_SCALES, FFN_SCALES, Architecture

LLAMA = {
    "llama": Architecture(
        interleaved_rope=True, ffn_bias=True, scaled=(*ATTENTION_SCALES, *FFN_SCALES, *EXPERT_SCALES)
    ),
}
