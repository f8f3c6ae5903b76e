"""dots.llm1: DeepSeek's experts behind plain attention."""

from __future__ import annotations

from executor.models.architectures.base import ROUTER_KEYS, Architecture

DOTS = {
    "dots1": Architecture(
        qk_norm="always",
        scoring="sigmoid",
        normalise=False,
        router_keys=ROUTER_KEYS,
        leading_dense=True,
        requires=("output.weight",),
    )
}
