"""The small synthetic models that a probe runs, and the cells that it runs them in, by kind of device.

Host weights are computed on the CPU in ubatches below `Cells.op_offload_min_batch` and are copied in larger ones; no
prompt has both, so that what goes on beside a step is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from executor.devices.base import DeviceKind
from profiler.planning.request import GridPoint

_COMMON: Final = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 32_768}


@dataclass(frozen=True, slots=True)
class ProbeShape:
    """A synthetic model, as a config of Hugging Face's states it."""

    name: str
    config: dict[str, Any]

    @property
    def has_experts(self) -> bool:
        return "num_experts" in self.config


@dataclass(frozen=True, slots=True)
class ProbeModels:
    """What a probe runs. `fitted`: in the first quant type, and fitted to, whatever time that takes.

    Where time is left, `checked` are held against the fit, `more` are fitted to as well, which tell how times grow with
    the shapes, and then the other quant types' `fitted`. `cells` are fitted to, `checked_cells` held against the fit.
    """

    fitted: tuple[ProbeShape, ...]
    more: tuple[ProbeShape, ...]
    checked: tuple[ProbeShape, ...]
    cells: tuple[GridPoint, ...]
    checked_cells: tuple[GridPoint, ...]
    op_offload_min_batch: int
    seconds: float
    """After so long nothing begins that could be left out."""


def dense(hidden: int, n_ff: int, n_layers: int = 1, head: int = 64, n_vocab: int = 4096) -> ProbeShape:
    """Layers of attention and a dense FFN."""
    own = {"model_type": "llama", "intermediate_size": n_ff}
    return ProbeShape(f"dense {hidden}x{n_ff}", _common(hidden, n_layers, head, n_vocab) | own)


def moe(
    hidden: int, n_ff: int, n_experts: int, n_used: int = 4, n_layers: int = 1, head: int = 64, n_vocab: int = 4096
) -> ProbeShape:
    """Layers of attention and experts, `n_used` of which serve a token; each is `n_ff` wide."""
    own = {"model_type": "qwen3_moe", "num_experts_per_tok": n_used, "norm_topk_prob": True, "num_experts": n_experts}
    sizes = {"intermediate_size": n_ff, "moe_intermediate_size": n_ff}
    return ProbeShape(f"{n_experts} experts {hidden}x{n_ff}", _common(hidden, n_layers, head, n_vocab) | own | sizes)


def _common(hidden: int, n_layers: int, head: int, n_vocab: int) -> dict[str, Any]:
    heads = hidden // head
    return _COMMON | {
        "hidden_size": hidden,
        "num_hidden_layers": n_layers,
        "head_dim": head,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 4),
        "vocab_size": n_vocab,
    }


_CPU: Final = ProbeModels(
    fitted=(dense(1024, 3072), moe(512, 512, 16)),
    more=(dense(512, 1536), moe(256, 256, 32)),
    checked=(dense(768, 2048), moe(512, 256, 32)),
    cells=(GridPoint(160, 3, 128, 0), GridPoint(20, 3, 16, 512)),
    checked_cells=(GridPoint(96, 4, 64, 0),),
    op_offload_min_batch=32,
    seconds=20.0,
)
# Some layers, so that the host comes to issue ahead of the device, as it does in whole models.
_LARGE: Final = {"n_layers": 4, "head": 128, "n_vocab": 32_768}
_CUDA: Final = ProbeModels(
    fitted=(dense(4096, 12_288, **_LARGE), moe(2048, 768, 64, 8, **_LARGE)),
    more=(dense(2048, 6144, **_LARGE), moe(1024, 1024, 32, **_LARGE)),
    checked=(dense(3072, 8192, **_LARGE), moe(2048, 1024, 32, **_LARGE)),
    cells=(GridPoint(4608, 16, 4096, 0), GridPoint(48, 16, 32, 8192)),
    checked_cells=(GridPoint(1536, 16, 1024, 0),),
    op_offload_min_batch=64,
    seconds=40.0,
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
