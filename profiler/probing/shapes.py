"""The small synthetic models that a probe runs, and the cells that it runs them in, by kind of device.

A model has layers in each quant type that is asked for: one that came to a model of its own would be left out where
time is short, and be priced as the others.

Host weights are computed on the CPU in ubatches below `Cells.op_offload_min_batch` and are copied in larger ones; no
prompt has both, so that what goes on beside a step is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from executor.devices.base import DeviceKind
from profiler.planning.request import GridPoint

_COMMON: Final = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 32_768}


@dataclass(frozen=True, slots=True)
class ProbeShape:
    """A synthetic model, as a config of Hugging Face's states it, but for how many layers it has.

    `n_layers`: at least so many.
    """

    name: str
    config: dict[str, Any]
    n_layers: int

    @property
    def has_experts(self) -> bool:
        return "num_experts" in self.config

    def in_types(self, n_types: int) -> dict[str, Any]:
        """The config with as many layers as it takes to have each kind of layer in each of `n_types` equally often,
        where layer after layer has the next type.
        """
        period = n_types * (2 if self.has_experts else 1)
        n_layers = math.ceil(self.n_layers / period) * period
        config = self.config | {"num_hidden_layers": n_layers}
        if self.has_experts:
            config["mlp_only_layers"] = [layer for layer in range(n_layers) if layer // n_types % 2 == 0]
        return config


@dataclass(frozen=True, slots=True)
class ProbeModels:
    """What a probe runs. `fitted` are fitted to, whatever time that takes: two sizes, as one does not tell what a step
    takes once from what it takes by its work.

    Where time is left, `checked` are held against the fit, then `more` are fitted to as well. `cells` are fitted to,
    `checked_cells` held against the fit.
    """

    fitted: tuple[ProbeShape, ...]
    more: tuple[ProbeShape, ...]
    checked: tuple[ProbeShape, ...]
    cells: tuple[GridPoint, ...]
    checked_cells: tuple[GridPoint, ...]
    op_offload_min_batch: int
    seconds: float
    """Nothing begins that could be left out and would, as far as is known, end later."""


def dense(hidden: int, n_ff: int, n_layers: int = 1, head: int = 64, n_vocab: int = 4096) -> ProbeShape:
    """Layers of attention and a dense FFN."""
    own = {"model_type": "llama", "intermediate_size": n_ff}
    return ProbeShape(f"dense {hidden}x{n_ff}", _common(hidden, head, n_vocab) | own, n_layers)


def mixed(
    hidden: int,
    n_ff: int,
    experts: tuple[int, int, int],
    n_layers: int = 2,
    head: int = 64,
    n_vocab: int = 4096,
) -> ProbeShape:
    """Half the layers of attention have a dense FFN, the others experts: one model tells of both.

    `experts`: how many there are, how many serve a token, and how wide each is.
    """
    n_experts, n_used, width = experts
    own = {
        "model_type": "qwen3_moe",
        "intermediate_size": n_ff,
        "moe_intermediate_size": width,
        "num_experts": n_experts,
        "num_experts_per_tok": n_used,
        "norm_topk_prob": True,
    }
    name = f"dense {hidden}x{n_ff} and {n_experts} experts {hidden}x{width}"
    return ProbeShape(name, _common(hidden, head, n_vocab) | own, n_layers)


def _common(hidden: int, head: int, n_vocab: int) -> dict[str, Any]:
    heads = hidden // head
    return _COMMON | {
        "hidden_size": hidden,
        "head_dim": head,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 4),
        "vocab_size": n_vocab,
    }


_CPU: Final = ProbeModels(
    fitted=(mixed(1024, 3072, (16, 4, 512)), mixed(512, 1536, (32, 4, 256))),
    more=(),
    checked=(mixed(768, 2048, (32, 4, 384)),),
    cells=(GridPoint(160, 3, 128, 0), GridPoint(20, 3, 16, 512)),
    checked_cells=(GridPoint(96, 4, 64, 0),),
    op_offload_min_batch=32,
    seconds=27.0,
)
# Some layers, so that the host comes to issue ahead of the device, and weights that the CPU's caches do not hold, both
# as in whole models.
_LARGE: Final = {"head": 128, "n_vocab": 32_768}
_CUDA: Final = ProbeModels(
    fitted=(
        mixed(4096, 14_336, (8, 2, 6144), n_layers=4, **_LARGE),
        mixed(2048, 6144, (64, 8, 768), n_layers=8, **_LARGE),
    ),
    more=(mixed(1024, 4096, (32, 4, 512), n_layers=4, **_LARGE),),
    checked=(mixed(3072, 8192, (32, 4, 1536), n_layers=4, **_LARGE),),
    cells=(GridPoint(4608, 16, 4096, 0), GridPoint(192, 0, 128, 2048), GridPoint(48, 16, 32, 8192)),
    checked_cells=(GridPoint(1280, 16, 1024, 0),),
    op_offload_min_batch=64,
    seconds=60.0,
)
USUAL: Final[Mapping[DeviceKind, ProbeModels]] = {"cpu": _CPU, "sim": _CPU, "cuda": _CUDA}
TINY: Final = ProbeModels(
    fitted=(dense(256, 512),),
    more=(),
    checked=(dense(256, 768),),
    cells=(GridPoint(40, 2, 32, 0),),
    checked_cells=(GridPoint(40, 2, 32, 0),),
    op_offload_min_batch=32,
    seconds=60.0,
)
"""What can be run in a second: a trial, whose figures do not carry over."""
