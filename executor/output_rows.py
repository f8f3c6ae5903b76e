"""Which of a ubatch's rows go on behind the last layer's mixer: those alone whose logits are wanted.

So does llama.cpp: it drops the others (`inp_out_ids`) once attention's output is projected, before the residual, the
router and the FFN. Of a prompt one row is left, in its last ubatch; that row falls under the offload threshold.
"""

from __future__ import annotations

from typing import Final

from executor.model import ModelShape
from executor.passes import Ubatch

# Their graphs drop rows behind the last layer, unless a draft model asks for masked hidden states
# (`embeddings_nextn_masked`; llama.cpp 0.5.0-dev, src/models/*.cpp).
_DROP_BEHIND_THE_LAYER: Final = frozenset({"deepseek4", "gpt-oss", "qwen35", "qwen35moe", "qwen3next"})


def drops_rows(shape: ModelShape) -> bool:
    """Whether a model's last layer does so."""
    return shape.architecture not in _DROP_BEHIND_THE_LAYER and not shape.keeps_rows


def behind_mixer(shape: ModelShape, layer: int, ubatch: Ubatch) -> Ubatch | None:
    """The rows of a ubatch that go through what follows a layer's mixer; None where none do."""
    if layer < len(shape.layers) - 1 or not drops_rows(shape):
        return ubatch
    return ubatch.outputs()
