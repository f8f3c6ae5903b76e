"""ERNIE 4.5, dense and of experts."""

from __future__ import annotations

from executor.model import Ffn
from executor.models.architectures.base import Architecture, ModelFile
from executor.models.architectures.ffn import read_dense, read_moe


def _ffn(file: ModelFile, layer: int) -> Ffn:
    """Dense layers first, then every so many layers one of experts."""
    step = file.fields.integer("interleave_moe_layer_step")
    is_moe = layer >= file.fields.integer("leading_dense_block_count", 0, low=0) and (layer + 1) % step == 0
    return read_moe(file, layer) if is_moe else read_dense(file, layer)


ERNIE = {
    "ernie4_5": Architecture(interleaved_rope=True),
    "ernie4_5-moe": Architecture(ffn=_ffn, interleaved_rope=True),
}
