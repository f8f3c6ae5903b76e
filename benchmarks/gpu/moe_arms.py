"""`hot` and `auto` against `off` and `on`, on MoE presets with the synthetic routing model."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.gpu.common import Workload, busy_ms, open_session, passes
from executor.model import Model
from executor.passes import PassResult

ARMS = ("off", "on", "hot", "auto")


def grid(
    model: Model, cells: Iterable[Workload], n_pairs: int = 5, arms: Sequence[str] = ARMS, hot_warmups: int = 4
) -> list[dict[str, Any]]:
    """One row a cell: medians, hot over the better of off and on, auto over the best of the three."""
    cells = list(cells)
    with open_session(model, [*arms, "full"], cells, n_cpu_moe=999) as session:
        return [
            _row(cell, passes(session, arms, cell, n_pairs, warmups=hot_warmups), _compute_ms(session, cell))
            for cell in cells
        ]


def _compute_ms(session: Any, cell: Workload) -> float:
    results = passes(session, ["full"], cell, 2)["full"]
    return statistics.median(busy_ms(r, ("compute",)) for r in results)


def _row(cell: Workload, results: dict[str, list[PassResult]], compute_ms: float) -> dict[str, Any]:
    ms = {arm: statistics.median((r.prefill_ns or 0) / 1e6 for r in rs) for arm, rs in results.items()}
    best = min(ms[arm] for arm in ("off", "on", "hot"))
    return {
        "n_ubatch": cell.n_ubatch,
        "n_depth": cell.n_depth,
        "n_prompt": cell.n_prompt,
        **{f"{arm}_ms": value for arm, value in ms.items()},
        "compute_ms": compute_ms,
        "copy_whole_ms": statistics.median(busy_ms(r, ("h2d",)) for r in results["on"]),
        "distinct_share": statistics.mean(e.distinct / e.n_experts for r in results["off"] for e in r.experts),
        "hot_over_best_of_off_on": ms["hot"] / min(ms["off"], ms["on"]),
        "hot_bytes_over_off": _bytes(results["hot"]) / _bytes(results["off"]),
        "auto_over_best": ms["auto"] / best if "auto" in ms else None,
        "auto_chose": sorted({u.policy for r in results.get("auto", []) for u in r.ubatches}),
    }


def _bytes(results: list[PassResult]) -> float:
    return statistics.median(r.bytes_h2d for r in results)
