"""Phi-3 and Phi-4: joined matrices, other rotation factors for a long context; llama.cpp ignores their window."""

from __future__ import annotations

from executor.models.architectures.base import Architecture

PHI = {"phi3": Architecture(long_rope=True)}
