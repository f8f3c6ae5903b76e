"""Costs of a machine that was probed, for any model: each kind of step's time as a sum of its work, by least squares.

A step takes so much once, for each value that it writes, each byte that it moves, each operation of its products, and
for what is its own: operations of attention's scores, experts in use, or of trips to the CPU, that they are for
experts. The coefficients are not negative, and are apart by the step's name, where it runs, its weights' quant type,
the phase, and what goes on beside it. Work is counted as the `sim` device counts it
(`profiler.predicting.layout.step_work`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, cast

import numpy as np
import pandas as pd
import torch

from executor.arrays import Flags, Floats
from executor.engine.work import dense_work
from executor.errors import HprofError
from executor.passes import Phase
from profiler.predicting.costs import CopyWay, Points, Setting, step_bytes
from profiler.predicting.fitted import OTHERS, all_steps, fit_copies
from profiler.predicting.layout import Layout, Step, step_work
from profiler.predicting.least_squares import fit_relative
from profiler.predicting.samples import Samples, StepKey, key_of, mean_gaps

ANY_QUANT: Final = "any"
"""Serves quant types that were not probed: fitted to all that were."""
WORKS: Final = ("once", "value", "byte", "flop", "own")
"""What the coefficients are of, in their order."""
_LIKE: Final[Mapping[str, tuple[str, ...]]] = {
    "ffn": ("experts", "shared"),
    "experts": ("ffn",),
    "shared": ("ffn", "experts"),
}
"""Whose times by their work stand in for a step that was not probed where it runs."""
_MARGIN: Final = 1.001
_FEWEST_SIZES: Final = 2
_BEYOND: Final = 4.0  # so many times more or fewer bytes than were probed still count as seen


class Group(NamedTuple):
    """Steps that share coefficients."""

    name: str
    where: str
    quant: str
    phase: Phase
    setting: Setting


@dataclass(frozen=True, slots=True)
class WorkFit:
    """`coefficients` (5,): ns for each of WORKS. `misses`: root mean square of the fit's relative misses."""

    coefficients: Floats
    n_tokens: tuple[float, float]
    positions: float
    n_bytes: tuple[float, float]
    misses: float
    n: int


@dataclass(frozen=True, slots=True)
class ProbedCosts:
    """Costs of the machine that a probe measured, where activations are in `dtype`."""

    groups: Mapping[Group, WorkFit]
    per_copy_ns: float
    ns_per_byte: Mapping[CopyWay, float]
    begin_ns: float
    token_ns: float
    routed_copy_delay_ns: float
    divided_copy_delay_ns: float
    dtype: torch.dtype

    def step_ns(self, step: Step, points: Points, distinct: Floats) -> Floats:
        found = self._fit(step, points)
        if found is None and step.tensors:
            raise HprofError(
                f"the probe shows no products of a layer's {step.name} on the {step.where}, nor any like them: probe "
                "again (hprof probe), or give the machine's rates (--gpu, --host-memory-gb-s)."
            )
        if found is None:
            return np.zeros_like(points.n_past)  # no event tells it apart from the gap before the next step
        return np.asarray(works(step, points, distinct, self.dtype) @ found.coefficients)

    @property
    def runs_by_tensor(self) -> bool:
        return False

    def copy_ns(self, n_bytes: Floats, n_copies: Floats, way: CopyWay, n_tensors: int = 1) -> Floats:
        return np.asarray(n_copies * self.per_copy_ns + n_bytes * self.ns_per_byte[way])

    def inside_ns(self, n_bytes: Floats) -> Floats:
        """Read and written at the rate at which steps read weights."""
        byte = WORKS.index("byte")
        read = [fit.coefficients[byte] for group, fit in self.groups.items() if group.where == "device"]
        return 2 * n_bytes * min((ns for ns in read if ns > 0), default=0.0)

    def with_link(self, gb_s: float) -> ProbedCosts:
        """The same machine on another link."""
        return replace(self, ns_per_byte=dict.fromkeys(self.ns_per_byte, 1 / gb_s))

    def in_range(self, step: Step, points: Points) -> Flags:
        found = self._fit(step, points)
        if found is None or (step.tensors and not self._is_probed(step)) or self._shares_unseen(step, points):
            return np.zeros(len(points.n_tokens), np.bool_)
        inside = (points.n_tokens * _MARGIN >= found.n_tokens[0]) & (points.n_tokens <= found.n_tokens[1] * _MARGIN)
        weights = sum(tensor.n_bytes for tensor in step.tensors)
        seen = found.n_bytes[0] / _BEYOND <= weights <= found.n_bytes[1] * _BEYOND
        return np.asarray(inside & (points.n_past + points.n_tokens <= found.positions * _MARGIN) & seen)

    @property
    def knows_sharing(self) -> bool:
        """Whether CPU and link were seen to share a layer's experts."""
        return any(group.setting == "divided" for group in self.groups)

    def _shares_unseen(self, step: Step, points: Points) -> bool:
        """Whether the CPU multiplies beside copies, which slow it down, and was never seen to."""
        is_beside = points.setting == "divided" and step.where == "host"
        group = Group(step.name, step.where, ANY_QUANT, points.phase, points.setting)
        return is_beside and group not in self.groups

    def _is_probed(self, step: Step) -> bool:
        seen = {(group.name, group.where, group.quant) for group in self.groups}
        return (step.name, step.where, quant_of(step)) in seen

    def _fit(self, step: Step, points: Points) -> WorkFit | None:
        one = bool((points.n_tokens == 1).all())
        phases: tuple[Phase, ...] = ("decode", "prefill") if points.phase == "decode" or one else ("prefill",)
        for name in (step.name, *_LIKE.get(step.name, ())):
            for quant in (quant_of(step), ANY_QUANT):
                for phase in phases:
                    for setting in OTHERS[points.setting]:
                        group = Group(name, step.where, quant, phase, setting)
                        if group in self.groups:
                            return self.groups[group]
        return None


def quant_of(step: Step) -> str:
    """The quant type that most of a step's matrices' bytes are in; `any` where it has none."""
    n_bytes: dict[str, int] = {}
    for tensor in step.tensors:
        if len(tensor.shape) > 1:
            n_bytes[tensor.quant] = n_bytes.get(tensor.quant, 0) + tensor.n_bytes
    return max(n_bytes, key=lambda quant: n_bytes[quant]) if n_bytes else ANY_QUANT


def works(step: Step, points: Points, distinct: Floats, dtype: torch.dtype) -> Floats:
    """(points, 5): how much of each of WORKS a step does."""
    n, ones = points.n_tokens, np.ones_like(points.n_past)
    if step.where in ("out", "in"):
        n_bytes = n * step.row_bytes if step.row_bytes else float(step_bytes(step)) * ones
        more = float(step.layer is not None and step.layer.moe is not None)  # experts' rows go with what was chosen
        return np.stack([ones, 0 * ones, n_bytes, 0 * ones, more * ones], axis=1)
    flops, moved = step_work(step, n, points.n_past, distinct, dtype)
    own = 0 * ones
    if step.positions_matter:
        products = dense_work(step.tensors, 1, dtype).flops * n
        flops, own = products, np.maximum(flops - products, 0.0)
    elif step.is_moe:
        own = np.asarray(distinct, np.float64)
    rows = ones if step.name == "sample" else n
    return np.stack([ones, rows * _values(step), moved, flops, own], axis=1)


def _values(step: Step) -> float:
    """Values that a step's matrices write for a token; 1 for a step without any."""
    used = step.layer.moe.n_used if step.is_moe and step.layer is not None and step.layer.moe is not None else 1
    written = sum(math.prod(tensor.shape[-2:-1]) for tensor in step.tensors if len(tensor.shape) > 1)
    return float(used * written or 1)


def fit_probed(samples: Sequence[Samples], layouts: Sequence[Layout], dtype: torch.dtype) -> ProbedCosts:
    """Fit what captures of several models showed, each with its layout. Raises HprofError where they show no step."""
    frames = [_worked(one, layout, dtype) for one, layout in zip(samples, layouts, strict=True)]
    steps = pd.concat(frames, ignore_index=True)
    if not len(steps):
        raise HprofError("the probe's passes left no steps to fit to; give it another --device.")
    groups: dict[Group, WorkFit] = {}
    for key, rows in steps.groupby(["name", "where", "phase", "setting"], observed=True):
        name, where, phase, setting = cast("tuple[str, str, Phase, Setting]", key)
        pooled = _fit(rows, once=None if _tells_once(rows) else 0.0)
        groups[Group(name, where, ANY_QUANT, phase, setting)] = pooled
        for quant, of_quant in rows.groupby("quant"):
            once = None if _tells_once(of_quant) else float(pooled.coefficients[0])
            groups[Group(name, where, str(quant), phase, setting)] = _fit(of_quant, once)
    groups |= _flags_that_took_no_time(groups)
    per_copy, per_byte = fit_copies(pd.concat([one.copies for one in samples], ignore_index=True))
    gaps = mean_gaps(samples)
    return ProbedCosts(groups, per_copy, per_byte, gaps["begin"], gaps["token"], gaps["routed"], gaps["divided"], dtype)


def _flags_that_took_no_time(groups: Mapping[Group, WorkFit]) -> dict[Group, WorkFit]:
    """Of phases and settings whose routers ran and whose flags were never copied alone: recorded tokens bring them."""
    ran = {(group.phase, group.setting): fit for group, fit in groups.items() if group.name == "router"}
    flags = {place: Group("copy flags", "out", ANY_QUANT, *place) for place in ran}
    return {
        flag: replace(ran[place], coefficients=np.zeros(len(WORKS)))
        for place, flag in flags.items()
        if flag not in groups
    }


def _worked(samples: Samples, layout: Layout, dtype: torch.dtype) -> pd.DataFrame:
    """The samples' steps with their work: name, where, quant, phase, setting, weights, and a column each of WORKS."""
    by_key = {key_of(step): step for step in all_steps(layout)}
    found = []
    for group, rows in samples.steps.groupby(["step", "phase"], observed=True):
        key, phase = cast("tuple[StepKey, Phase]", group)
        step = by_key.get(key)
        if step is None:
            continue
        n, past, distinct, share = (
            rows[name].to_numpy(np.float64) for name in ("n_tokens", "n_past", "distinct", "share")
        )
        done = works(step, Points(n * share, past, phase), distinct, dtype)
        weights = sum(tensor.n_bytes for tensor in step.tensors)
        found.append(
            rows.assign(name=step.name, where=step.where, quant=quant_of(step), weights=weights).assign(
                **dict(zip(WORKS, done.T, strict=True))
            )
        )
    return pd.concat(found, ignore_index=True) if found else samples.steps


def _tells_once(rows: pd.DataFrame) -> bool:
    """Whether steps of several sizes tell what they take once from what they take by their bytes."""
    return rows["weights"].max() == 0 or rows["weights"].nunique() >= _FEWEST_SIZES


def _fit(rows: pd.DataFrame, once: float | None) -> WorkFit:
    """Least squares over relative misses, with no coefficient below 0; `once` where that is known, in ns."""
    matrix, ns = rows[list(WORKS)].to_numpy(np.float64), np.maximum(rows["ns"].to_numpy(np.float64), 1.0)
    counts = rows["count"].to_numpy(np.float64)
    coefficients = np.zeros(len(WORKS))
    first = 0 if once is None else 1
    if once is not None:
        coefficients[0] = min(once, float(ns.min()))
    known = coefficients[0] * matrix[:, 0]
    coefficients[first:] = fit_relative(matrix[:, first:], ns, counts, known)
    missed = matrix @ coefficients / ns - 1
    return WorkFit(
        coefficients,
        (float(rows["n_tokens"].min()), float(rows["n_tokens"].max())),
        float((rows["n_tokens"] + rows["n_past"]).max()),
        (float(rows["weights"].min()), float(rows["weights"].max())),
        float(np.sqrt(np.average(missed**2, weights=counts))),
        int(rows["count"].sum()),
    )
