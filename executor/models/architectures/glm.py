"""GLM-4.5 and later."""

from __future__ import annotations

from executor.models.architectures.base import Architecture

GLM = {"glm4moe": Architecture(qk_norm="optional", scoring="sigmoid", normalise=False, reads_router_keys=True)}
