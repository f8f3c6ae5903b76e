"""Qwen2 and Qwen3, dense and of experts."""

from __future__ import annotations

from executor.models.architectures.base import Architecture

QWEN = {
    "qwen2": Architecture(output_bias=True),
    "qwen2moe": Architecture(normalise=False, shared="always", splits_n_ff=True),
    "qwen3": Architecture(qk_norm="always"),
    "qwen3moe": Architecture(qk_norm="always", splits_n_ff=True),
}
