"""Architectures whose layers are plain attention and a plain FFN: their entries say all there is to say."""

from __future__ import annotations

from typing import Final

from executor.models.architectures.base import (
    ATTENTION_SCALES,
    EXPERT_SCALES,
    FFN_SCALES,
    ROUTER_KEYS,
    Architecture,
)

PLAIN: Final[dict[str, Architecture]] = {
    # Llama and what is stored as it: Mistral up to 2, Mixtral
    "llama": Architecture(
        interleaved_rope=True, ffn_bias=True, scaled=(*ATTENTION_SCALES, *FFN_SCALES, *EXPERT_SCALES)
    ),
    # Qwen2 and Qwen3, dense and of experts; of those that see (`vl`) the text part
    "qwen2": Architecture(output_bias=True),
    "qwen2moe": Architecture(normalise=False, shared="always", splits_n_ff=True, requires=("output.weight",)),
    "qwen3": Architecture(qk_norm="always", scaled=(*ATTENTION_SCALES, *FFN_SCALES)),
    "qwen3moe": Architecture(qk_norm="always", splits_n_ff=True, scaled=(*ATTENTION_SCALES, *EXPERT_SCALES)),
    "qwen2vl": Architecture(sections="in a row", output_bias=True),
    "qwen3vl": Architecture(sections="in turn", qk_norm="always"),
    "qwen3vlmoe": Architecture(sections="in turn", qk_norm="always", splits_n_ff=True),
    # sinks, a window in every other layer, an activation of its own
    "gpt-oss": Architecture(
        sinks=True,
        window_every=2,
        scoring="softmax_topk",
        normalise=False,
        activation="oai_swiglu",
        requires=("output.weight", "attn_output.bias"),
    ),
    # Phi-3 and Phi-4: other rotation factors for a long context; llama.cpp ignores their window
    "phi3": Architecture(long_rope=True),
    # dots.llm1: DeepSeek's experts behind plain attention
    "dots1": Architecture(
        qk_norm="always",
        scoring="sigmoid",
        normalise=False,
        router_keys=ROUTER_KEYS,
        leading_dense=True,
        requires=("output.weight",),
    ),
    # Llama with biases on q, k and v, and another name for the norm before the FFN
    "seed_oss": Architecture(),
}
