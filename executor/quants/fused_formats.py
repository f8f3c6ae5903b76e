"""Every quant type as the fused kernel sees it: how to decode a cell, and where its planes go."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from executor.quants import fused_codebook, fused_k, fused_legacy, fused_plain
from executor.quants.table import QUANTS


class Format(NamedTuple):
    """Blocks of `block_cells` cells; a cell's planes are `plane_stride` weights apart."""

    decode: Any
    block_bytes: int
    block_cells: int
    planes: int
    plane_stride: int
    alignment: int  # of the blocks' addresses, in bytes


def _format(name: str, decode: Any, planes: int, plane_stride: int, alignment: int) -> Format:
    kind = QUANTS[name]
    scale_up = max(8 // kind.block_size, 1)  # plain floats: 8 of their blocks of one weight make a cell
    cells = kind.block_size * scale_up // (8 * planes)
    return Format(decode, kind.block_bytes * scale_up, cells, planes, plane_stride, alignment)


FORMATS: Final[dict[str, Format]] = {
    name: _format(name, *how)
    for name, how in {
        "F32": (fused_plain.f32, 1, 8, 4),
        "F16": (fused_plain.f16, 1, 8, 2),
        "BF16": (fused_plain.bf16, 1, 8, 2),
        "Q8_0": (fused_legacy.q8_0, 1, 8, 2),
        "Q4_0": (fused_legacy.q4_0, 2, 16, 2),
        "Q4_1": (fused_legacy.q4_1, 2, 16, 2),
        "Q5_0": (fused_legacy.q5_0, 2, 16, 2),
        "Q5_1": (fused_legacy.q5_1, 2, 16, 2),
        "Q2_K": (fused_k.q2_k, 4, 32, 2),
        "Q3_K": (fused_k.q3_k, 4, 32, 2),
        "Q4_K": (fused_k.q4_k, 2, 32, 4),
        "Q5_K": (fused_k.q5_k, 2, 32, 4),
        "Q6_K": (fused_k.q6_k, 4, 32, 2),
        "IQ4_NL": (fused_codebook.iq4_nl, 2, 16, 2),
        "IQ4_XS": (fused_codebook.iq4_xs, 2, 16, 2),
        "MXFP4": (fused_codebook.mxfp4, 2, 16, 1),
    }.items()
}
