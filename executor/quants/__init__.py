"""GGUF's quant types: their sizes, their bytes as numbers, and random blocks of them.

Sizes come without torch; `dequantise` and `fill_random` import it when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from executor.quants.table import QUANTS, QuantType, quant_type, row_bytes, tensor_bytes

if TYPE_CHECKING:
    from executor.quants.random_blocks import fill_random
    from executor.quants.unpack import dequantise, dequantise_into

__all__ = [
    "QUANTS",
    "QuantType",
    "dequantise",
    "dequantise_into",
    "fill_random",
    "quant_type",
    "row_bytes",
    "tensor_bytes",
]

_NEEDS_TORCH = {
    "dequantise": "executor.quants.unpack",
    "dequantise_into": "executor.quants.unpack",
    "fill_random": "executor.quants.random_blocks",
}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module 'executor.quants' has no attribute {name!r}")
    return getattr(importlib.import_module(_NEEDS_TORCH[name]), name)
