"""Llama and what is stored as it: Mistral, Mixtral."""

from __future__ import annotations

from executor.models.architectures.base import Architecture

LLAMA = {"llama": Architecture(interleaved_rope=True)}
