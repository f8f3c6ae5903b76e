"""Costs as captures showed them: each step's time as a sum of what it grows with, by least squares.

A step of a ubatch of n tokens that see p positions, with d experts in use, takes `a + b n + c n p + e d`; the
coefficients are not negative, and small and large ubatches count alike. A step that was never seen takes what its work
takes at the rates that the seen ones reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np
import pandas as pd
import torch

from executor.arrays import Flags, Floats
from executor.devices.sim import SimMachine
from executor.errors import HprofError
from executor.passes import Phase
from profiler.predicting.costs import CopyWay, Points, RateCosts, Setting
from profiler.predicting.layout import Layout, Step, step_work
from profiler.predicting.least_squares import fit_relative, least_misses, not_negative
from profiler.predicting.samples import Samples, StepKey, key_of, mean_gaps

OTHERS: Final[Mapping[Setting, tuple[Setting, ...]]] = {
    "alone": ("alone", "inline", "copies", "host", "divided"),
    "inline": ("inline", "alone", "copies", "host", "divided"),
    "copies": ("copies", "alone", "inline", "host", "divided"),
    "host": ("host", "alone", "inline", "copies", "divided"),
    "divided": ("divided", "host", "inline", "alone", "copies"),
}
"""Whose times stand in where a setting was not seen."""
_MARGIN: Final = 1.001  # a point on the edge of what was seen is seen


@dataclass(frozen=True, slots=True)
class StepFit:
    """One step in one phase and setting: coefficients of 1, n, n p and d, and what was seen."""

    coefficients: Floats
    n_tokens: tuple[float, float]
    positions: float
    """The most positions that a ubatch ended at."""
    one_row_ns: float | None = None
    """What one row takes, where that is the same work: no ubatch takes less, and cost bends upwards from there."""

    def ns(self, n_tokens: Floats, seen: Floats, distinct: Floats) -> Floats:
        """The step's time at each point."""
        line = features(n_tokens, seen, distinct) @ self.coefficients
        return (
            line if self.one_row_ns is None else np.where(n_tokens < self.n_tokens[0], self._bent(n_tokens, seen), line)
        )

    def _bent(self, n_tokens: Floats, seen: Floats) -> Floats:
        """Below what was seen: midway between the least and the most that a convex curve through what is known allows.

        The least is the line itself, or one row's time; the most is the chord from one row to the smallest seen.
        """
        assert self.one_row_ns is not None
        zero = np.zeros_like(n_tokens)
        line = features(n_tokens, seen, zero) @ self.coefficients
        first = self.n_tokens[0]
        top = features(np.full_like(n_tokens, first), seen, zero) @ self.coefficients
        chord = self.one_row_ns + (top - self.one_row_ns) * (n_tokens - 1) / (first - 1)
        return np.asarray((np.maximum(line, self.one_row_ns) + np.maximum(chord, line)) / 2)


def features(n_tokens: Floats, seen: Floats, distinct: Floats) -> Floats:
    """(points, 4): what a step's time grows with."""
    return np.stack([np.ones_like(n_tokens), n_tokens, n_tokens * seen, distinct], axis=1)


@dataclass(frozen=True, slots=True)
class FittedCosts:
    """Costs of the machine and the model that captures showed; `rates` serve steps that they did not."""

    steps: Mapping[tuple[StepKey, Phase, Setting], StepFit]
    per_copy_ns: float
    ns_per_byte: Mapping[CopyWay, float]
    begin_ns: float
    token_ns: float
    routed_copy_delay_ns: float
    divided_copy_delay_ns: float
    rates: RateCosts

    def step_ns(self, step: Step, points: Points, distinct: Floats) -> Floats:
        fit = self._fit(step, points)
        if fit is None:
            unseen = step.name in ("add", "begin")  # no event tells them apart from the gap before the next step
            return np.zeros_like(points.n_past) if unseen else self.rates.step_ns(step, points, distinct)
        seen = points.seen(step.window) if step.positions_matter else np.zeros_like(points.n_past)
        return fit.ns(points.n_tokens, seen, distinct if step.is_moe else np.zeros_like(points.n_past))

    @property
    def runs_by_tensor(self) -> bool:
        return False

    def copy_ns(self, n_bytes: Floats, n_copies: Floats, way: CopyWay, n_tensors: int = 1) -> Floats:
        return np.asarray(n_copies * self.per_copy_ns + n_bytes * self.ns_per_byte[way])

    def inside_ns(self, n_bytes: Floats) -> Floats:
        return self.rates.inside_ns(n_bytes)

    def with_link(self, gb_s: float) -> FittedCosts:
        """The same machine on another link."""
        return replace(self, ns_per_byte=dict.fromkeys(self.ns_per_byte, 1 / gb_s))

    def in_range(self, step: Step, points: Points) -> Flags:
        fit = self._fit(step, points)
        if fit is None or self._shares_unseen(step, points):
            return np.zeros(len(points.n_tokens), np.bool_)
        inside = (points.n_tokens * _MARGIN >= fit.n_tokens[0]) & (points.n_tokens <= fit.n_tokens[1] * _MARGIN)
        return np.asarray(inside & (points.n_past + points.n_tokens <= fit.positions * _MARGIN))

    @property
    def knows_sharing(self) -> bool:
        """Whether CPU and link were seen to share a layer's experts."""
        return any(setting == "divided" for _, _, setting in self.steps)

    def _shares_unseen(self, step: Step, points: Points) -> bool:
        """Whether the CPU multiplies beside copies, which slow it down, and was never seen to."""
        is_beside = points.setting == "divided" and step.where == "host"
        return is_beside and (key_of(step), points.phase, points.setting) not in self.steps

    def _fit(self, step: Step, points: Points) -> StepFit | None:
        key, one = key_of(step), bool((points.n_tokens == 1).all())
        phases: tuple[Phase, ...] = ("decode", "prefill") if points.phase == "decode" or one else ("prefill",)
        for phase in phases:
            for setting in OTHERS[points.setting]:
                if (key, phase, setting) in self.steps:
                    return self.steps[key, phase, setting]
        return None


def fit_costs(samples: Sequence[Samples], layouts: Sequence[Layout], dtype: torch.dtype) -> FittedCosts:
    """Fit what `samples` showed of the layouts' steps. Raises HprofError where they show no step."""
    steps = pd.concat([one.steps for one in samples], ignore_index=True)
    if not len(steps):
        raise HprofError("the captures to fit to hold no steps of passes; record them without --recorder off.")
    by_key = {key_of(step): step for layout in layouts for step in all_steps(layout)}
    fits: dict[tuple[StepKey, Phase, Setting], StepFit] = {}
    for group, rows in steps.groupby(["step", "phase", "setting"], observed=True):
        key, phase, setting = cast("tuple[StepKey, Phase, Setting]", group)
        if key in by_key:
            fits[key, phase, setting] = _fit_step(by_key[key], rows)
    fits = {key: _with_one_row(key, fit, by_key[key[0]], fits) for key, fit in fits.items()}
    for layout in layouts:
        fits |= _flags_that_took_no_time(layout, fits)
    per_copy, per_byte = fit_copies(pd.concat([one.copies for one in samples], ignore_index=True))
    gaps = mean_gaps(samples)
    machine = _fit_machine(steps, by_key, dtype, per_copy, per_byte)
    return FittedCosts(
        fits,
        per_copy,
        per_byte,
        gaps["begin"],
        gaps["token"],
        gaps["routed"],
        gaps["divided"],
        RateCosts(machine, dtype),
    )


def all_steps(layout: Layout) -> list[Step]:
    """Every step that the layout's passes may take, on the device, the bus and the CPU."""
    inner = [
        step
        for kind in layout.kinds
        for step in (*kind.steps, *filter(None, [kind.flags]), *(s for trip in kind.on_host.values() for s in trip))
    ]
    return [*inner, layout.embed, layout.logits, layout.sample, *layout.move]


def _flags_that_took_no_time(
    layout: Layout, fits: Mapping[tuple[StepKey, Phase, Setting], StepFit]
) -> dict[tuple[StepKey, Phase, Setting], StepFit]:
    """Of phases and settings whose routers ran and whose flags were never copied alone: recorded tokens bring them."""
    found = {}
    for kind in layout.kinds:
        router = next((step for step in kind.steps if step.name == "router"), None)
        if kind.flags is None or router is None:
            continue
        seen = [(phase, setting, fit) for (key, phase, setting), fit in fits.items() if key == key_of(router)]
        for phase, setting, fit in seen:
            flags = key_of(kind.flags), phase, setting
            if flags not in fits:
                found[flags] = replace(fit, coefficients=np.zeros(4), one_row_ns=None)
    return found


def _fit_step(step: Step, rows: pd.DataFrame) -> StepFit:
    n_tokens, past, distinct, ns = (
        rows[name].to_numpy(np.float64) for name in ("n_tokens", "n_past", "distinct", "ns")
    )
    n_here = n_tokens * rows["share"].to_numpy(np.float64)
    seen = Points(n_tokens, past).seen(step.window)
    grows = np.array([True, step.name != "sample", step.positions_matter, step.is_moe])
    if len(np.unique(n_tokens)) == 1:
        grows[1] = False
    matrix = features(n_here, seen if step.positions_matter else 0 * seen, distinct)
    grows &= matrix.any(axis=0)  # of a capture that does not say how many experts were in use
    matrix = matrix[:, grows]
    share = pd.Series(rows["count"].to_numpy()).groupby(n_tokens).transform("sum").to_numpy()
    coefficients = np.zeros(4)
    coefficients[grows] = fit_relative(matrix, ns, rows["count"].to_numpy(np.float64) / share)
    return StepFit(coefficients, (n_tokens.min(), n_tokens.max()), (n_tokens + past).max())


def _with_one_row(
    key: tuple[StepKey, Phase, Setting],
    fit: StepFit,
    step: Step,
    fits: Mapping[tuple[StepKey, Phase, Setting], StepFit],
) -> StepFit:
    """With what one row takes, where decoding showed it and it is more than the line says: then the weights bound it.

    Attention is left out, whose one row goes another way, and so are experts, of which one row needs few.
    """
    alone = fits.get((key[0], "decode", "alone"))
    if key[1] != "prefill" or alone is None or step.where != "device" or step.is_moe or step.positions_matter:
        return fit
    one, zero = np.ones(1), np.zeros(1)
    measured, line = float(alone.ns(one, zero, zero)[0]), float((features(one, zero, zero) @ fit.coefficients)[0])
    return replace(fit, one_row_ns=measured) if measured > line and fit.n_tokens[0] > 1 else fit


def fit_copies(copies: pd.DataFrame) -> tuple[float, dict[CopyWay, float]]:
    """ns a piece, the same either way, and ns a byte by way.

    A piece's cost is told from its bytes' where copies are of several pieces: by all copies together, since the bus is
    the same; what a way's copies take beyond it is theirs. How many pieces a divided layer's copies were is not exact,
    so that these only tell what they take beyond it.
    """
    known = copies[copies["n_copies"].notna()]
    if not len(known):
        return 0.0, {"inline": 0.0, "ahead": 0.0, "divided": 0.0}
    grouped = known.groupby(["way", "bytes", "n_copies"])["ns"].agg(["mean", "size"]).reset_index()
    n_copies, n_bytes, ns = (grouped[name].to_numpy(np.float64) for name in ("n_copies", "bytes", "mean"))
    weight = np.sqrt(grouped["size"].to_numpy()) / ns
    exact = grouped["way"].to_numpy() != "divided"
    per_copy = 0.0
    if len(np.unique(n_copies[exact])) > 1:
        matrix = np.stack([n_copies, n_bytes], axis=1)
        scale = matrix.max(axis=0)
        weighted = (matrix / scale * weight[:, None])[exact]
        per_copy = float(not_negative(weighted, (ns * weight)[exact])[0] / scale[0])
    left = grouped.assign(ns=(ns - per_copy * n_copies) * grouped["size"], moved=n_bytes * grouped["size"])
    sums = left.groupby("way")[["ns", "moved"]].sum()
    rates = (sums["ns"] / sums["moved"]).to_dict()
    slowest = max(rates.values())
    inline = rates.get("inline", slowest)
    return per_copy, {
        "inline": inline,
        "ahead": rates.get("ahead", slowest),
        "divided": rates.get("divided", inline),
    }


def _fit_machine(
    steps: pd.DataFrame, by_key: Mapping[StepKey, Step], dtype: torch.dtype, per_copy: float,
    per_byte: Mapping[CopyWay, float],
) -> SimMachine:  # fmt: skip
    """The rates at which the `sim` device's rules come nearest to the samples, by ratio."""
    device = _works(steps, by_key, dtype, "device")
    host = _works(steps, by_key, dtype, "host")
    machine = SimMachine(host_call_us=0.0)
    if per_byte["ahead"] > 0:
        machine = replace(machine, link_latency_us=per_copy / 1e3, link_gb_s=1 / per_byte["ahead"])
    if len(device):
        gemm, memory, launch = _fit_roofline(device, with_launch=True)
        machine = replace(machine, gemm_tflop_s=gemm / 1e3, memory_gb_s=memory, launch_us=launch / 1e3)
    if len(host):
        gflop_s, memory, _ = _fit_roofline(host, with_launch=False)
        machine = replace(machine, host_gflop_s=gflop_s, host_memory_gb_s=memory)
    return machine


def _works(steps: pd.DataFrame, by_key: Mapping[StepKey, Step], dtype: torch.dtype, where: str) -> Floats:
    """(samples, 3): flops, bytes and ns of the steps with matrices, at most some hundred; none that did no work."""
    rows = steps[[key in by_key and key[1] == where and bool(by_key[key].tensors) for key in steps["step"]]]
    rows = rows.iloc[:: max(1, len(rows) // 200)]
    found = [np.zeros((0, 3))]
    for key, of_step in rows.groupby("step"):
        n, past, distinct, share = (
            of_step[name].to_numpy(np.float64) for name in ("n_tokens", "n_past", "distinct", "share")
        )
        flops, n_bytes = step_work(by_key[cast("StepKey", key)], n * share, past, distinct, dtype)
        found.append(np.stack([flops, n_bytes, of_step["ns"].to_numpy(np.float64)], axis=1))
    works = np.concatenate(found)
    return works[(works[:, :2] > 0).all(axis=1)]


def _fit_roofline(works: Floats, *, with_launch: bool) -> tuple[float, float, float]:
    """Flops a ns, bytes a ns, and ns a launch."""
    flops, n_bytes, ns = works.T
    ns = np.maximum(ns, 1.0)  # shorter than a clock tells

    def misses(parameters: Floats) -> Floats:
        rate, speed, launch = np.exp(parameters)
        return np.asarray(np.log(np.maximum(flops / rate, n_bytes / speed) + launch * with_launch) - np.log(ns))

    start = np.log([np.max(flops / ns), np.max(n_bytes / ns), max(1.0, ns.min() / 2)])
    rate, speed, launch = np.exp(least_misses(misses, start, loss="soft_l1")[0])
    return float(rate), float(speed), float(launch * with_launch)
