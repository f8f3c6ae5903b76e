"""Layouts in which resident weights lie, where their type's own keeps a GPU from reading whole words.

A Q4_0 block of 18 bytes puts every other block's weights beside the words that memory is read in. Eight blocks at a
time have their scales moved to the front: "Q4_0/8" is as large, and every load is aligned. Streamed weights stay as the
file has them; both give the same numbers.
"""

from __future__ import annotations

from typing import Final

import torch

from executor.quants.table import QUANTS, QuantType

_SCALE_BYTES: Final = 2
_PIECE_BYTES: Final = 64 << 20  # re-laid at once, as that much memory is held besides

RELAID: Final[dict[str, QuantType]] = {
    f"{name}/8": QuantType(f"{name}/8", 8 * QUANTS[name].block_size, 8 * QUANTS[name].block_bytes)
    for name in ("Q4_0", "Q8_0")
}
"""By a layout's name; a block of it is eight of the type's own."""


def stored_type(layout: str) -> QuantType:
    """Block sizes of a quant type or of a layout."""
    return RELAID[layout] if layout in RELAID else QUANTS[layout]


def quant_of(layout: str) -> str:
    """The quant type whose numbers a layout holds."""
    return layout.partition("/")[0]


def resident_layout(quant: str, n_cols: int) -> str:
    """The layout for a resident matrix with rows of `n_cols` weights."""
    layout = f"{quant}/8"
    return layout if layout in RELAID and n_cols % RELAID[layout].block_size == 0 else quant


def relay(raw: torch.Tensor, layout: str) -> None:
    """Bring `raw` (n_bytes,) uint8, whole blocks of `layout` in their type's own order, into its order in place."""
    if layout not in RELAID:
        return
    block_bytes = RELAID[layout].block_bytes
    for piece in raw.split(_PIECE_BYTES // block_bytes * block_bytes):
        eight = piece.view(-1, 8, block_bytes // 8)
        scales, weights = eight[..., :_SCALE_BYTES].flatten(1), eight[..., _SCALE_BYTES:].flatten(1)
        piece.copy_(torch.cat([scales, weights], dim=1).flatten())
