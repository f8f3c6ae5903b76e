"""Placement under a VRAM budget: as many layers' experts (or dense FFNs) resident as fit beside everything else.

What prefetch reserves for its slots, and a cache for its bank, is then paid in resident layers: each arm gets
the placement that its own reservations leave room for.
"""

from __future__ import annotations

import math
import re
from typing import Final

from executor.errors import HprofError
from executor.model import Model, TensorInfo
from executor.placement import Placement, is_movable
from executor.policies.base import Policy
from executor.shape import MoeFfn
from executor.splits import StepKind, step_kind

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_MAX_BYTES: Final = 2**62


def parse_bytes(text: str, option: str) -> int:
    """`24GiB`, `500 MB` or a plain number, in bytes. Raises HprofError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    n_bytes = float(match[1]) * _UNITS[match[2]] if match is not None and match[2] in _UNITS else math.inf
    if n_bytes > _MAX_BYTES:
        raise HprofError(f"{option} '{text[:80]}' is not a size: write it as 24GiB, 500MiB or a number of bytes")
    return int(n_bytes)


def fit_to_budget(model: Model, policy: Policy, budget_bytes: int, working_bytes: int) -> Placement:
    """The placement that keeps the most layers' FFN weights resident; the first layers stream, as with `-ncmoe`.

    `working_bytes` are mixer states and activations. Raises HprofError, with the least budget that would do, when
    even with all of them in host memory the rest does not fit.
    """
    groups = _ffn_groups(model)
    sizes = [sum(t.n_bytes for t in group) for group in groups]
    rest = model.n_bytes - sum(sizes) + working_bytes + policy.cache_bytes
    for n_host in range(len(groups) + 1):
        slots = policy.n_slots * max(sizes[:n_host], default=0)
        if rest + slots + sum(sizes[n_host:]) <= budget_bytes:
            return _placement(groups, n_host, budget_bytes)
    least = rest + policy.n_slots * max(sizes, default=0)
    raise HprofError(
        f"--vram-budget {budget_bytes // 2**20:,} MiB is too small for arm '{policy.name}' on {model.shape.name}: with "
        f"every FFN in host memory it needs {_mib(least)}; give that much, or lower -d, -ub or --layers"
    )


def _ffn_groups(model: Model) -> list[list[TensorInfo]]:
    """Each layer's movable FFN or expert weights."""
    groups: list[list[TensorInfo]] = [[] for _ in model.shape.layers]
    for tensor in model.tensors.values():
        if tensor.layer is not None and is_movable(tensor):
            is_moe = isinstance(model.shape.layers[tensor.layer].ffn, MoeFfn)
            kinds: tuple[StepKind, ...] = ("experts",) if is_moe else ("ffn",)
            if step_kind(tensor, is_moe=is_moe) in kinds:
                groups[tensor.layer].append(tensor)
    return groups


def _mib(n_bytes: int) -> str:
    return f"{-(-n_bytes // 2**20):,} MiB"


def _placement(groups: list[list[TensorInfo]], n_host: int, budget_bytes: int) -> Placement:
    host = frozenset(t.name for group in groups[:n_host] for t in group)
    return Placement(host, f"--vram-budget {budget_bytes} (FFN of the first {n_host} layers in host memory)")
