"""The quant types that hprof moves and dequantises, with gguf's block sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from executor.errors import HprofError

PLAIN: Final = ("F32", "F16", "BF16")
_LEGACY: Final = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
_K_QUANTS: Final = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
_CODEBOOK: Final = ("IQ4_NL", "IQ4_XS", "MXFP4")


@dataclass(frozen=True, slots=True)
class QuantType:
    """A row is a whole number of blocks; `block_size` weights are stored in `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int


QUANTS: Final[dict[str, QuantType]] = {
    name: QuantType(name, *GGML_QUANT_SIZES[GGMLQuantizationType[name]])
    for name in (*PLAIN, *_LEGACY, *_K_QUANTS, *_CODEBOOK)
}


def quant_type(name: str) -> QuantType:
    """The type called `name`, in capitals or not; HprofError lists the known ones."""
    if (found := QUANTS.get(name.upper())) is None:
        raise HprofError(f"Quant type {name!r} is not known; choose one of {', '.join(QUANTS)}.")
    return found


def row_bytes(quant: str, n_cols: int) -> int:
    """Bytes of one row of `n_cols` weights; HprofError where they do not fill whole blocks."""
    kind = quant_type(quant)
    if n_cols % kind.block_size:
        raise HprofError(
            f"Rows of {n_cols} weights cannot be stored as {quant}, whose blocks hold {kind.block_size}; "
            f"choose a quant type whose block size divides {n_cols}."
        )
    return n_cols // kind.block_size * kind.block_bytes


def tensor_bytes(quant: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of `shape` (numpy order: the last dimension is a row's)."""
    return math.prod(shape[:-1]) * row_bytes(quant, shape[-1])
