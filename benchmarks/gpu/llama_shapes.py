"""The GGUF shapes that llama.cpp was measured with on the same machine (its figures: one H200, pinned, -fa 1).

`python -m benchmarks.gpu.run` makes both files with a seeded writer when they are not given.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks.gpu.common import Workload, busy_ms, open_session, passes, prefill_ms
from executor.model import Model
from executor.passes import PassResult

LLAMA_CPP_DENSE = {512: {"resident": 14645, "off": 6312}, 2048: {"resident": 14919, "off": 10498}}
LLAMA_CPP_MOE = {32: 1816, 64: 3307, 128: 5457, 512: 13585, 2048: 16856, 4096: 18488}
LLAMA_CPP_MOE_RESIDENT = {512: 22717, 2048: 24543, 4096: 23111}
LLAMA_CPP_DECODE = {"experts on CPU": 62, "resident": 640}


def dense(model: Model, n_pairs: int = 3) -> list[dict[str, Any]]:
    """pp8192 with the FFN in host memory."""
    cells = [Workload(8192, n) for n in LLAMA_CPP_DENSE]
    arms = ["off", "on", "full"]
    rows = []
    with open_session(model, arms, cells, overrides="ffn_(gate|up|down).*=CPU") as session:
        for cell in cells:
            results = passes(session, arms, cell, n_pairs)
            reference = LLAMA_CPP_DENSE[cell.n_ubatch]
            speed = {arm: cell.n_prompt / prefill_ms(results[arm]) * 1e3 for arm in arms}
            rows.append(
                {
                    "n_ubatch": cell.n_ubatch,
                    **{f"{arm}_tokens_per_s": speed[arm] for arm in arms},
                    "llama_cpp_off": reference["off"],
                    "llama_cpp_resident": reference["resident"],
                    "off_over_llama_cpp": speed["off"] / reference["off"],
                    "on_over_llama_cpp": speed["on"] / reference["off"],
                }
            )
    return rows


def moe(model: Model, n_pairs: int = 3, ubatches: Iterable[int] = (512, 2048, 4096)) -> list[dict[str, Any]]:
    """pp4096 with all experts in host memory; the model's own router."""
    cells = [Workload(4096, n) for n in ubatches]
    arms = ["off", "on", "full"]
    rows = []
    with open_session(model, arms, cells, n_cpu_moe=99, synthetic_routing=False) as session:
        for cell in cells:
            results = passes(session, arms, cell, n_pairs)
            speed = {arm: cell.n_prompt / prefill_ms(results[arm]) * 1e3 for arm in arms}
            rows.append(
                {
                    "n_ubatch": cell.n_ubatch,
                    **{f"{arm}_tokens_per_s": speed[arm] for arm in arms},
                    "llama_cpp_off": LLAMA_CPP_MOE[cell.n_ubatch],
                    "off_over_llama_cpp": speed["off"] / LLAMA_CPP_MOE[cell.n_ubatch],
                    "distinct_share": _distinct_share(results["off"]),
                    "off_copy_busy_ms": statistics.median(busy_ms(r, ("h2d",)) for r in results["off"]),
                    "compute_busy_ms": statistics.median(busy_ms(r, ("compute",)) for r in results["full"]),
                }
            )
    return rows


def moe_decode(model: Model, n_gen: int = 17) -> dict[str, Any]:
    """Decode with the experts computed on the host, and with everything resident."""
    cell = Workload(n_prompt=64, n_ubatch=64, n_gen=n_gen)
    with open_session(model, ["cpu", "full"], [cell], n_cpu_moe=99, synthetic_routing=False) as session:
        results = passes(session, ["cpu", "full"], cell, 3)
    return {
        "cpu_tokens_per_s": _decode_tokens_per_s(results["cpu"], n_gen),
        "resident_tokens_per_s": _decode_tokens_per_s(results["full"], n_gen),
        "llama_cpp": LLAMA_CPP_DECODE,
    }


def _decode_tokens_per_s(results: list[PassResult], n_gen: int) -> float:
    return (n_gen - 1) / statistics.median((r.decode_ns or 0) / 1e9 for r in results)


def _distinct_share(results: list[PassResult]) -> float:
    return statistics.mean(e.distinct / e.n_experts for r in results for e in r.experts)
