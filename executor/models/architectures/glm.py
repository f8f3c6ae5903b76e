"""GLM-4.5 and later."""

from __future__ import annotations

from executor.models.architectures.base import ROUTER_KEYS, Architecture

GLM = {"glm4moe": Architecture(qk_norm="optional", scoring="sigmoid", normalise=False, router_keys=ROUTER_KEYS)}
