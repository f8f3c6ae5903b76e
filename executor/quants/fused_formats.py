"""Every quant type as the fused kernel sees it: how to decode a chunk, and how far apart the blocks are."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from executor.quants import fused_codebook, fused_k, fused_legacy, fused_plain
from executor.quants.fused_loads import CHUNK
from executor.quants.table import QUANTS


class Format(NamedTuple):
    """Blocks of whole chunks, at addresses that are multiples of `alignment` bytes."""

    decode: Any
    block_bytes: int
    block_chunks: int
    alignment: int


_DECODERS: Final[dict[str, Any]] = {
    "F32": fused_plain.f32,
    "F16": fused_plain.f16,
    "BF16": fused_plain.bf16,
    "Q8_0": fused_legacy.q8_0,
    "Q4_0": fused_legacy.q4_0,
    "Q4_1": fused_legacy.q4_1,
    "Q5_0": fused_legacy.q5_0,
    "Q5_1": fused_legacy.q5_1,
    "Q2_K": fused_k.q2_k,
    "Q3_K": fused_k.q3_k,
    "Q4_K": fused_k.q4_k,
    "Q5_K": fused_k.q5_k,
    "Q6_K": fused_k.q6_k,
    "IQ4_NL": fused_codebook.iq4_nl,
    "IQ4_XS": fused_codebook.iq4_xs,
    "MXFP4": fused_codebook.mxfp4,
}
_ALIGNMENTS: Final = {"F32": 4, "MXFP4": 1}  # all others hold a float16 at an even offset, or are one


def _format(name: str) -> Format:
    kind = QUANTS[name]
    per_block = max(CHUNK // kind.block_size, 1)  # plain floats: 8 of their blocks of 1 make a chunk
    weights = kind.block_size * per_block
    return Format(_DECODERS[name], kind.block_bytes * per_block, weights // CHUNK, _ALIGNMENTS.get(name, 2))


FORMATS: Final[dict[str, Format]] = {name: _format(name) for name in QUANTS}
