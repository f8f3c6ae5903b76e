"""Prompts through two GGUF files, dense and of experts: hprof, and llama.cpp in the same run where it is given.

`python -m benchmarks.gpu.check` makes both files with a seeded writer when they are not given. Rows name the file by
its digest: figures of another file are no measure, since random weights of another seed route otherwise.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks.gpu.common import Workload, busy_ms, open_session, passes, prefill_ms
from benchmarks.gpu.llama_bench import EXPERTS_ON_HOST, FFN_ON_HOST, LlamaBench, ratio
from executor.model import Model
from executor.passes import PassResult

Rows = list[dict[str, Any]]


def dense(model: Model, peer: LlamaBench, n_pairs: int = 3, ubatches: Iterable[int] = (512, 2048)) -> Rows:
    """pp8192 with the FFN in host memory."""
    cells = [Workload(8192, n) for n in ubatches]
    arms = ["off", "on", "full"]
    rows = []
    off, resident = (peer.prefill(model, 8192, ubatches, flags) for flags in (FFN_ON_HOST, ()))
    with open_session(model, arms, cells, overrides="ffn_(gate|up|down).*=CPU") as session:
        for cell in cells:
            results = passes(session, arms, cell, n_pairs)
            n = cell.n_ubatch
            speed = {arm: cell.n_prompt / prefill_ms(results[arm]) * 1e3 for arm in arms}
            rows.append(
                {
                    "file": model.source.digest(),
                    "n_ubatch": n,
                    **{f"{arm}_tokens_per_s": speed[arm] for arm in arms},
                    "llama_cpp_off": off.get(n),
                    "llama_cpp_resident": resident.get(n),
                    "off_over_llama_cpp": ratio(speed["off"], off.get(n)),
                    "on_over_llama_cpp": ratio(speed["on"], off.get(n)),
                }
            )
    return rows


def moe(model: Model, peer: LlamaBench, n_pairs: int = 3, ubatches: Iterable[int] = (512, 2048, 4096)) -> Rows:
    """pp4096 with all experts in host memory; the model's own router."""
    cells = [Workload(4096, n) for n in ubatches]
    arms = ["off", "on", "full"]
    rows = []
    off = peer.prefill(model, 4096, ubatches, EXPERTS_ON_HOST)
    with open_session(model, arms, cells, n_cpu_moe=99, synthetic_routing=False) as session:
        for cell in cells:
            results = passes(session, arms, cell, n_pairs)
            speed = {arm: cell.n_prompt / prefill_ms(results[arm]) * 1e3 for arm in arms}
            rows.append(
                {
                    "file": model.source.digest(),
                    "n_ubatch": cell.n_ubatch,
                    **{f"{arm}_tokens_per_s": speed[arm] for arm in arms},
                    "llama_cpp_off": off.get(cell.n_ubatch),
                    "off_over_llama_cpp": ratio(speed["off"], off.get(cell.n_ubatch)),
                    "distinct_share": _distinct_share(results["off"]),
                    "off_copy_busy_ms": statistics.median(busy_ms(r, ("h2d",)) for r in results["off"]),
                    "compute_busy_ms": statistics.median(busy_ms(r, ("compute",)) for r in results["full"]),
                }
            )
    return rows


def _distinct_share(results: list[PassResult]) -> float:
    return statistics.mean(e.distinct / e.n_experts for r in results for e in r.experts)
