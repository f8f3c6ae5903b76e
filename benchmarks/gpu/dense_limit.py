"""Dense prefetch against its limit: `on` over max(sum C, sum T), the link's speed, and the recorder's cost.

C is the busy compute of a pass with everything resident; T the busy copy of the `on` pass itself.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.gpu.common import Workload, busy_ms, gb_s, open_session, passes, prefill_ms, wall_ms
from executor.model import Model
from executor.passes import EventKind, PassJob, PassResult
from executor.policies.base import PolicyOptions
from executor.session import Session

UBATCHES = (512, 2048, 8192)


def run(model: Model, n_pairs: int = 5) -> list[dict[str, Any]]:
    """One row a ubatch size with two slots, and the size where C and T are closest with four."""
    cells = [Workload(n_prompt=max(16384, 4 * n), n_ubatch=n) for n in UBATCHES]
    return _rows(model, cells, n_pairs, slots=2) + _rows(model, cells[1:2], n_pairs, slots=4)


def _rows(model: Model, cells: list[Workload], n_pairs: int, slots: int) -> list[dict[str, Any]]:
    arms, policy = ["off", "on", "full"], PolicyOptions(slots=slots)
    with open_session(model, arms, cells, overrides="ffn_(gate|up|down).*=CPU", policy=policy) as session:
        return [{"slots": slots, **_row(session, cell, n_pairs)} for cell in cells]


def _row(session: Session, cell: Workload, n_pairs: int) -> dict[str, Any]:
    results = passes(session, ["off", "on", "full"], cell, n_pairs)
    on = results["on"]
    compute = statistics.median(busy_ms(r, ("compute",)) for r in results["full"])
    copy = statistics.median(busy_ms(r, ("h2d",)) for r in on)
    wall, limit = prefill_ms(on), max(compute, copy)
    per_ubatch = _sum_of_maxima(results["full"][0], on[0])
    full_wall = statistics.median(wall_ms(r, first_ubatch=1) for r in on)
    full_compute = statistics.median(busy_ms(r, ("compute",), first_ubatch=1) for r in results["full"])
    full_copy = statistics.median(busy_ms(r, ("h2d",), first_ubatch=1) for r in on)
    return {
        "n_ubatch": cell.n_ubatch,
        "n_prompt": cell.n_prompt,
        "off_ms": prefill_ms(results["off"]),
        "on_ms": wall,
        "resident_ms": prefill_ms(results["full"]),
        "sum_c_ms": compute,
        "sum_t_ms": copy,
        "on_over_limit": wall / limit,
        "on_over_sum_of_ubatch_limits": wall / per_ubatch,
        "on_over_limit_from_second_ubatch": full_wall / max(full_compute, full_copy),
        "copy_gb_s": gb_s(on[0]),
        "link_gb_s": session.devices[0].link_gb_s,
        "same_logits": len({r.logits_digest for arm in results.values() for r in arm[:1]}) == 1,
    }


def _sum_of_maxima(full: PassResult, on: PassResult) -> float:
    """Sum over ubatches of max(C, T): what a pipeline of few slots can reach where C grows with depth."""
    numbers = [u.ubatch for u in on.ubatches if u.phase == "prefill"]
    return sum(max(_ubatch_ms(full, "compute", n), _ubatch_ms(on, "h2d", n)) for n in numbers)


def _ubatch_ms(result: PassResult, kind: EventKind, ubatch: int) -> float:
    return sum(e.t_end - e.t_start for e in result.events if e.kind == kind and e.ubatch == ubatch) / 1e6


def recorder_cost(model: Model, n_pairs: int = 6) -> dict[str, Any]:
    """Time with the recorder over the time without, paired and interleaved: prefill under `off` and `on`, and decoded
    tokens under `off` and `full`.
    """
    prefill, decode = Workload(n_prompt=8192, n_ubatch=512), Workload(n_prompt=64, n_ubatch=64, n_gen=65)
    measured = {"prefill": (prefill, ("off", "on")), "decode": (decode, ("off", "full"))}
    row: dict[str, Any] = {}
    with open_session(model, ["off", "on", "full"], [prefill, decode], overrides="ffn_(gate|up|down).*=CPU") as session:
        for phase, (cell, arms) in measured.items():
            for arm in arms:
                ratios = [_pair(session, arm, cell, repetition) for repetition in range(n_pairs + 1)][1:]
                row[f"{arm}_{phase}_recorded_over_not"] = statistics.median(ratios)
                row[f"{arm}_{phase}_ratios"] = ratios
    return row


def _pair(session: Session, arm: str, cell: Workload, repetition: int) -> float:
    job = PassJob(0, arm, cell.n_prompt, cell.n_gen, cell.n_ubatch, 0, repetition)
    order = (True, False) if repetition % 2 == 0 else (False, True)
    results = {record: session.run_pass(job, record=record) for record in order}
    times = {record: (one.decode_ns if cell.n_gen else one.prefill_ns) or 0 for record, one in results.items()}
    return times[True] / times[False]
