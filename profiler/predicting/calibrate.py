"""From captures to a calibration: the costs that their passes showed, which experts were in use, and how far the fit
is from what it was fitted to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from executor.errors import HprofError
from executor.units import format_change
from profiler.capture import Capture
from profiler.metrics.passes import CELL_KEYS
from profiler.planning.placed_arms import device_of_layers
from profiler.planning.plan import RunPlan
from profiler.planning.request import GridPoint
from profiler.predicting.costs import Costs
from profiler.predicting.expert_use import ExpectedUse, expert_use, use_of_observed
from profiler.predicting.fitted import FittedCosts, fit_costs
from profiler.predicting.layout import Layout, build_layout
from profiler.predicting.measured import grid_point, measured_cells, relative, told_passes
from profiler.predicting.predictor import predict
from profiler.predicting.samples import Samples, distinct_seen, take_samples

_DEVIATIONS: Final = 2.0  # half an interval of 95 %, where misses are normal
_APART: Final = 0.05  # so much further off than by itself, and twice as far, a capture disagrees with the others


@dataclass(frozen=True, slots=True)
class Source:
    """A capture to fit to: the plan of what it ran, and which of its cells count (None: all)."""

    capture: Capture
    plan: RunPlan
    cells: frozenset[GridPoint] | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """`spread` is by figure ("ttft", "decode") the relative half-width of an interval; None where none is known.

    `disagreements`: of several sources, a sentence for each that the others pull away from what it measured.
    """

    costs: FittedCosts
    use: ExpectedUse | None
    spread: dict[str, float | None]
    disagreements: tuple[str, ...] = ()


def calibrate(sources: Sequence[Source]) -> Calibration:
    """Fit costs to captures. Raises HprofError where none holds a measured pass with its steps."""
    samples = [samples_of(source) for source in sources]
    costs = _fit(sources, samples)
    told = _disagreements(sources, samples, costs) if len(sources) > 1 else ()
    return Calibration(costs, _observed_use(sources[0]), spread_of_misses(sources, costs), told)


def _fit(sources: Sequence[Source], samples: Sequence[Samples]) -> FittedCosts:
    return fit_costs(samples, [source_layout(source) for source in sources], sources[0].plan.session.dtype)


def _disagreements(sources: Sequence[Source], samples: Sequence[Samples], together: Costs) -> tuple[str, ...]:
    """What is told of a source by the fit to all of them, where that is much further off than a fit to it alone."""
    found = []
    for source, own in zip(sources, samples, strict=True):
        if not len(own.steps):
            continue
        alone = _misses(source, _fit([source], [own]))
        for figure, misses in _misses(source, together).items():
            if not misses:
                continue
            what = "TTFT is" if figure == "ttft" else "decode times are"
            found.append(disagreement(source.capture.name, what, misses, alone[figure]))
    return tuple(filter(None, found))


def disagreement(name: str, what: str, by_all: Sequence[float], by_itself: Sequence[float]) -> str | None:
    """A sentence where the others that are fitted to pull far away from what the source of this name measured.

    what: of it, with its verb. by_all, by_itself: the misses of the fit to all of them, and of a fit to it alone.
    """
    pulled, own = (float(np.median(misses)) for misses in (by_all, by_itself))
    if abs(pulled) <= max(2 * abs(own), abs(own) + _APART):
        return None
    return (
        f"{name} and what else it is fitted to disagree: its {what} told {format_change(1 + pulled)} off by all of it, "
        f"{format_change(1 + own)} by itself."
    )


def samples_of(source: Source) -> Samples:
    """The times of the passes that a source is fitted to."""
    layout = source_layout(source)
    use = _observed_use(source) or expert_use(source.plan, layout.moe_layers)
    return take_samples(source.capture, layout, fitted_passes(source), use)


def spread_of_misses(sources: Sequence[Source], costs: Costs) -> dict[str, float | None]:
    """By figure, twice the root mean square of what `costs` miss, relative to what the sources measured; None where
    they measured nothing of the kind."""
    found = [_misses(source, costs) for source in sources]
    return {figure: _spread([miss for one in found for miss in one[figure]]) for figure in ("ttft", "decode")}


def _misses(source: Source, costs: Costs) -> dict[str, list[float]]:
    """By figure, how far off `costs` are in each arm and cell of the source, as a share of what it measured."""
    misses: dict[str, list[float]] = {"ttft": [], "decode": []}
    measured = measured_cells(source.capture)
    for one in predict(source.plan, costs, _observed_use(source)):
        if source.cells is None or one.cell in source.cells:
            found = measured.get((one.label, one.cell))
            misses["ttft"] += relative(one.ttft_ns, found.ttft_ns if found else None)
            misses["decode"] += relative(one.decode_ns, found.decode_ns if found else None)
    return misses


def usual_cells(capture: Capture) -> frozenset[GridPoint]:
    """Three cells to fit a sweep by: the second smallest and the second largest ubatch at the least depth, the latter
    at the greatest depth too. A sweep of fewer ubatches gives its smallest and largest.
    """
    measured = told_passes(capture)
    ubatches, depths = sorted(measured["n_ubatch"].unique()), sorted(measured["n_depth"].unique())
    if not ubatches:
        raise HprofError(f"{capture.path} holds no measured pass to fit to.")
    low, high = (ubatches[1], ubatches[-2]) if len(ubatches) > 3 else (ubatches[0], ubatches[-1])
    wanted = {(low, depths[0]), (high, depths[0]), (high, depths[-1])}
    return frozenset(cell for cell in _cells_of(measured) if (cell.n_ubatch, cell.n_depth) in wanted)


def fitted_passes(source: Source) -> list[int]:
    """The ids of the passes that a source is fitted to: measured ones with their steps recorded."""
    passes = told_passes(source.capture)
    if source.cells is not None:
        passes = passes[[cell in source.cells for cell in _cells_of(passes)]]
    return [int(pass_id) for pass_id in passes["pass_id"]]


def _cells_of(passes: pd.DataFrame) -> list[GridPoint]:
    """The cell of each row of the `passes` table."""
    return [grid_point(sizes) for sizes in passes[CELL_KEYS].itertuples(index=False, name=None)]


def interval(value: float, spread: float | None) -> tuple[float | None, float | None]:
    """The interval that a figure is expected to lie in; None where the fit says nothing of it."""
    return (None, None) if spread is None else (value / (1 + spread), value * (1 + spread))


def _spread(misses: Sequence[float]) -> float | None:
    return _DEVIATIONS * float(np.sqrt(np.mean(np.square(misses)))) if misses else None


def source_layout(source: Source) -> Layout:
    """What the source's passes asked for, where its first placement has the weights."""
    plan = source.plan
    device_of = device_of_layers(plan.request, plan.model)
    return build_layout(plan.model, plan.setups[0].placement, device_of, plan.session.dtype)


def _observed_use(source: Source) -> ExpectedUse | None:
    """What the capture's own router chose; None where a routing model chose, which the plan then says."""
    if source.capture.manifest.model.get("routing") is not None:
        return None
    moe_layers = source_layout(source).moe_layers
    distinct = distinct_seen(source.capture, fitted_passes(source))
    if not len(distinct) or not moe_layers:
        return None
    moe = source.plan.model.shape.layers[moe_layers[0]].moe
    assert moe is not None
    n_tokens, seen = (distinct[name].to_numpy(np.float64) for name in ("n_tokens", "distinct"))
    return use_of_observed(n_tokens, seen, len(moe_layers), moe.n_experts, moe.n_used)
