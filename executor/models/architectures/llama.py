"""Llama and what is stored as it: Mistral up to 2, Mixtral."""

from __future__ import annotations

from executor.models.architectures.base import Architecture

LLAMA = {"llama": Architecture(interleaved_rope=True, ffn_bias=True)}
