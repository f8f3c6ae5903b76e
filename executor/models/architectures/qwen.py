"""Qwen2 and Qwen3, dense and of experts; of those that see (`vl`) the text part."""

from __future__ import annotations

from executor.models.architectures.base import ATTENTION_SCALES, EXPERT_SCALES, FFN_SCALES, Architecture

QWEN = {
    "qwen2": Architecture(output_bias=True),
    "qwen2moe": Architecture(normalise=False, shared="always", splits_n_ff=True, requires=("output.weight",)),
    "qwen3": Architecture(qk_norm="always", scaled=(*ATTENTION_SCALES, *FFN_SCALES)),
    "qwen3moe": Architecture(qk_norm="always", splits_n_ff=True, scaled=(*ATTENTION_SCALES, *EXPERT_SCALES)),
    "qwen2vl": Architecture(sections="in a row", output_bias=True),
    "qwen3vl": Architecture(sections="in turn", qk_norm="always"),
    "qwen3vlmoe": Architecture(sections="in turn", qk_norm="always", splits_n_ff=True),
}
