"""The architectures of GGUF files that hprof runs: one file a family, one entry an architecture.

A new one is an entry in its family's file, with `mixer` or `ffn` where plain attention or a plain FFN does not say
what its layers are, and a test of its family in `tests/executor/architectures/`.
"""

from __future__ import annotations

from typing import Final

from executor.models.architectures.base import Architecture
from executor.models.architectures.deepseek import DEEPSEEK
from executor.models.architectures.dots import DOTS
from executor.models.architectures.ernie import ERNIE
from executor.models.architectures.gemma import GEMMA
from executor.models.architectures.glm import GLM
from executor.models.architectures.gpt_oss import GPT_OSS
from executor.models.architectures.granite import GRANITE
from executor.models.architectures.llama import LLAMA
from executor.models.architectures.llama4 import LLAMA4
from executor.models.architectures.minimax import MINIMAX
from executor.models.architectures.mistral3 import MISTRAL3
from executor.models.architectures.olmo import OLMO
from executor.models.architectures.phi import PHI
from executor.models.architectures.qwen import QWEN
from executor.models.architectures.qwen_next import QWEN_NEXT
from executor.models.architectures.seed import SEED
from executor.models.architectures.smollm import SMOLLM

ARCHITECTURES: Final[dict[str, Architecture]] = {
    **LLAMA,
    **QWEN,
    **GLM,
    **GPT_OSS,
    **DEEPSEEK,
    **LLAMA4,
    **MINIMAX,
    **MISTRAL3,
    **GEMMA,
    **QWEN_NEXT,
    **OLMO,
    **PHI,
    **GRANITE,
    **ERNIE,
    **SMOLLM,
    **DOTS,
    **SEED,
}
