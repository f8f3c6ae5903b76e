"""Seed-OSS: Llama with biases on q, k and v, and another name for the norm before the FFN."""

from __future__ import annotations

from executor.models.architectures.base import Architecture

SEED = {"seed_oss": Architecture()}
