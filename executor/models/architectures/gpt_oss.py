"""gpt-oss: sinks, a window in every other layer, an activation of its own."""

from __future__ import annotations

from executor.models.architectures.base import Architecture

GPT_OSS = {
    "gpt-oss": Architecture(
        sinks=True,
        window_every=2,
        scoring="softmax_topk",
        normalise=False,
        activation="oai_swiglu",
        requires=("output.weight", "attn_output.bias"),
    ),
}
