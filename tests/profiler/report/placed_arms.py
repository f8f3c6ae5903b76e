"""An arm as a manifest of `hprof run` tells of it."""

from __future__ import annotations

from typing import Any

from executor.policies import find_traits
from profiler.manifest import ManifestArm


def arm(
    name: str,
    products: Any = None,
    least: Any = 32,
    host_bytes: int = 1,
    requested: str | None = None,
    bank_bytes: int = 0,
) -> ManifestArm:
    options = {
        "requested": {"op_offload_min_batch": least},
        "effective": {"host_bytes": host_bytes, "host_products": products, "vram_bank": bank_bytes},
    }
    return ManifestArm(name, requested or name, options=options, traits=find_traits(requested or name))
