"""The architectures of GGUF files that hprof runs, one entry each.

A new one is an entry of `plain` where its layers are plain; of `adjusted` where a function sets a few fields of theirs
otherwise; and has a file of its own where its layers are of another kind. Its test is in
`tests/executor/architectures/`.
"""

from __future__ import annotations

from typing import Final

from executor.models.architectures.adjusted import ADJUSTED
from executor.models.architectures.base import Architecture
from executor.models.architectures.deepseek import DEEPSEEK
from executor.models.architectures.llama4 import LLAMA4
from executor.models.architectures.plain import PLAIN
from executor.models.architectures.qwen_next import QWEN_NEXT

ARCHITECTURES: Final[dict[str, Architecture]] = {**PLAIN, **ADJUSTED, **DEEPSEEK, **LLAMA4, **QWEN_NEXT}
