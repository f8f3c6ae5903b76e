"""What the GPU benchmarks share: sessions, interleaved passes, and figures of a pass."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from executor.devices.factory import DeviceOptions
from executor.model import Model, MoeFfn
from executor.models.load import load_model
from executor.passes import EventKind, PassJob, PassResult
from executor.placement.place import place
from executor.policies import arm_traits
from executor.policies.base import PolicyOptions
from executor.routing.spec import routing_from_spec
from executor.session import Session, SessionOptions
from profiler.arithmetic.intervals import union

ROUTING = "lognormal"


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload."""

    n_prompt: int
    n_ubatch: int
    n_gen: int = 0
    n_depth: int = 0


@contextmanager
def open_session(
    model: Model,
    arms: Sequence[str],
    cells: Iterable[Workload],
    *,
    overrides: str | None = None,
    n_cpu_moe: int = 0,
    policy: PolicyOptions | None = None,
    op_offload_min_batch: int = 32,
    synthetic_routing: bool = True,
) -> Iterator[Session]:
    """A session on the GPU in bf16, sized for `cells`."""
    cells = list(cells)
    computes_on_host = any(arm_traits(arm).computes_on_host for arm in arms)
    options = SessionOptions(
        device=DeviceOptions("cuda"),
        max_positions=max(c.n_depth + c.n_prompt + c.n_gen for c in cells),
        max_ubatch=max(c.n_ubatch for c in cells),
        max_ubatches=max(-(-c.n_prompt // c.n_ubatch) + c.n_gen for c in cells),
        dtype=torch.bfloat16,
        policy=policy or PolicyOptions(op_offload_min_batch=op_offload_min_batch),
        routing=_routing(model) if synthetic_routing else None,
        layers_on_host=range(len(model.shape.layers)) if computes_on_host else (),
    )
    session = Session(model, place(model.tensors, overrides=overrides, n_cpu_moe=n_cpu_moe), arms, options)
    try:
        yield session
    finally:
        session.close()


def _routing(model: Model) -> Any:
    moe = [(i, layer.ffn) for i, layer in enumerate(model.shape.layers) if isinstance(layer.ffn, MoeFfn)]
    if not moe:
        return None
    ffn = moe[0][1]
    return routing_from_spec(ROUTING, layers=[i for i, _ in moe], n_experts=ffn.n_experts, n_used=ffn.n_used, seed=0)


def passes(
    session: Session, arms: Sequence[str], cell: Workload, n: int, *, warmups: int = 1
) -> dict[str, list[PassResult]]:
    """`n` measured passes an arm after its warm-ups, interleaved in ABBA order."""
    for arm in arms:
        for number in range(max(warmups, session.policies[arm].min_warmups)):
            session.run_pass(_job(arm, cell, number, warmup=True))
    results: dict[str, list[PassResult]] = {arm: [] for arm in arms}
    for repetition in range(n):
        for arm in arms if repetition % 2 == 0 else reversed(arms):
            results[arm].append(session.run_pass(_job(arm, cell, 100 + repetition)))
    return results


def _job(arm: str, cell: Workload, repetition: int, *, warmup: bool = False) -> PassJob:
    return PassJob(0, arm, cell.n_prompt, cell.n_gen, cell.n_ubatch, cell.n_depth, repetition, warmup)


def prefill_ms(results: Iterable[PassResult]) -> float:
    """Median prefill time."""
    return statistics.median((r.prefill_ns or 0) / 1e6 for r in results)


def busy_ms(result: PassResult, kinds: Sequence[EventKind], *, first_ubatch: int = 0) -> float:
    """Union of a pass's intervals of some kinds."""
    rows = [e for e in result.events if e.kind in kinds and e.phase == "prefill" and e.ubatch >= first_ubatch]
    starts = np.array([e.t_start for e in rows], dtype=np.int64)
    ends = np.array([e.t_end for e in rows], dtype=np.int64)
    return union(starts, ends).total / 1e6 if rows else 0.0


def gb_s(result: PassResult) -> float | None:
    """Weight bytes over busy copy time."""
    rows = [e for e in result.events if e.kind == "h2d" and e.tensor is not None]
    busy = busy_ms(result, ("h2d",))
    return sum(e.bytes or 0 for e in rows) / busy / 1e6 if rows else None


def wall_ms(result: PassResult, *, first_ubatch: int = 0) -> float:
    """Prefill time from the start of `first_ubatch` on."""
    prefill = [u for u in result.ubatches if u.phase == "prefill"]
    return (prefill[-1].t_end - prefill[first_ubatch].t_start) / 1e6


__all__ = ["Workload", "busy_ms", "gb_s", "load_model", "open_session", "passes", "prefill_ms", "wall_ms"]
