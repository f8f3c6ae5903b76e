"""llama.cpp's own scheduler as an engine that predictions are made for: what its steps and copies cost.

Weights on the host are copied in line, on the stream that computes, tensor by tensor: gate, up and down are a *split*
each, before which the GPU drains (`ggml_backend_sched_compute_splits`). Below the offload threshold the CPU computes
them, and them alone: of a layer that keeps up and gate on the GPU, down. Behind the last layer's attention only the
rows go on whose logits are wanted, so that of most ubatches its FFN is neither copied nor computed (`inp_out_ids`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from executor.arrays import Flags, Floats
from executor.devices.sim import SimMachine
from profiler.predicting.costs import CopyWay, Points
from profiler.predicting.layout import Step, step_work

DTYPE: Final = torch.bfloat16
"""Two bytes, as llama.cpp's f16 activations and KV cache are."""
_LAUNCHES: Final[Mapping[str, float]] = {
    "attn": 1.0,
    "ffn": 1.0,
    "router": 0.5,
    "experts": 2.0,
    "shared": 1.0,
    "logits": 1.0,
}
"""How many times the fixed cost a step has: experts are three routed products with their ids and sums."""
_MORE_THREADS: Final = 0.6  # 16 threads gave 1.5 times what 8 did (llama-bench, dense and experts, December 2026)
_GEMM: Final = (1.5, 160.0)
_EXPERTS: Final = (0.6, 55.0)
_MEMORY: Final = (0.8, 1700.0)
"""What its kernels are taken to reach with 4-bit weights where no rows say more: a share of the 16-bit products, of
the same for experts, and of the memory rate (it multiplies in 8 bits), and at most so many TFLOP/s or GB/s. The limits
are one H200's, December 2026; the shares are rough, after what users' tables show of smaller GPUs."""


@dataclass(frozen=True, slots=True)
class LlamaCppMachine:
    """What llama.cpp's kernels reach on one machine. `host_*` are with `host_threads`."""

    gemm_tflop_s: float
    experts_tflop_s: float
    memory_gb_s: float
    link_gb_s: float
    host_memory_gb_s: float
    launch_us: float = 12.0
    split_us: float = 100.0
    host_gflop_s: float = 1000.0
    host_threads: int | None = None

    @classmethod
    def of(cls, machine: SimMachine) -> LlamaCppMachine:
        """What llama.cpp is taken to reach on a machine of such rates."""
        return cls(
            gemm_tflop_s=_reached(_GEMM, machine.gemm_tflop_s),
            experts_tflop_s=_reached(_EXPERTS, machine.gemm_tflop_s),
            memory_gb_s=_reached(_MEMORY, machine.memory_gb_s),
            link_gb_s=machine.link_gb_s,
            host_memory_gb_s=machine.host_memory_gb_s,
        )


def _reached(share_and_most: tuple[float, float], rate: float) -> float:
    share, most = share_and_most
    return min(share * rate, most)


@dataclass(frozen=True, slots=True)
class LlamaCppCosts:
    """`Costs` of llama.cpp. `n_threads`: of the CPU's products; None: as many as the rates were taken with."""

    machine: LlamaCppMachine
    n_threads: int | None = None

    def step_ns(self, step: Step, points: Points, distinct: Floats) -> Floats:
        m, ones = self.machine, np.ones_like(points.n_past)
        if step.where in ("out", "in"):
            return (0.0 if step.name == "copy flags" else m.split_us * 1e3) * ones
        if step.name not in _LAUNCHES:
            return 0.0 * ones
        flops, _ = step_work(step, points.n_tokens, points.n_past, distinct, DTYPE)
        moved = self._bytes(step, points, distinct)
        if step.where == "host":
            more = self._more_threads()
            return np.maximum(flops / m.host_gflop_s, moved / m.host_memory_gb_s) / more
        rate = m.experts_tflop_s if step.name == "experts" else m.gemm_tflop_s
        return np.maximum(flops / (rate * 1e3), moved / m.memory_gb_s) + _LAUNCHES[step.name] * m.launch_us * 1e3

    @property
    def runs_by_tensor(self) -> bool:
        return True

    def copy_ns(self, n_bytes: Floats, n_copies: Floats, way: CopyWay, n_tensors: int = 1) -> Floats:
        splits = n_tensors * self.machine.split_us * 1e3 if way == "inline" else 0.0
        return np.asarray(splits + n_bytes / self.machine.link_gb_s)

    def inside_ns(self, n_bytes: Floats) -> Floats:
        return 2 * n_bytes / self.machine.memory_gb_s

    def with_link(self, gb_s: float) -> LlamaCppCosts:
        """The same machine on another link."""
        return replace(self, machine=replace(self.machine, link_gb_s=gb_s))

    @property
    def routed_copy_delay_ns(self) -> float:
        """Reading the ids back is part of a split."""
        return 0.0

    @property
    def divided_copy_delay_ns(self) -> float:
        """Reading the ids back is part of a split."""
        return 0.0

    @property
    def begin_ns(self) -> float:
        return 0.0

    @property
    def token_ns(self) -> float:
        return 0.0

    def in_range(self, step: Step, points: Points) -> Flags:
        return np.ones(len(points.n_tokens), np.bool_)

    def _bytes(self, step: Step, points: Points, distinct: Floats) -> Floats:
        """Stored bytes, which its kernels multiply as they are; of attention, the cache too."""
        matrices = [tensor for tensor in step.tensors if len(tensor.shape) > 1]
        if step.is_moe:
            return np.asarray(distinct * sum(tensor.n_bytes / tensor.shape[0] for tensor in matrices))
        weights = float(sum(tensor.n_bytes for tensor in matrices)) + 0.0 * points.n_past
        if not step.positions_matter:
            return np.asarray(weights)
        mixer = replace(step, tensors=())
        return weights + step_work(mixer, points.n_tokens, points.n_past, 0 * points.n_past, DTYPE)[1]

    def _more_threads(self) -> float:
        here, known = self.n_threads, self.machine.host_threads
        return 1.0 if here is None or known is None else (here / known) ** _MORE_THREADS
