"""How far a simulated or predicted comparison moves where the rates that it rests on are off: bounds from figures that
the report has, so that nothing is simulated again.

A prefill of P ns computes alone for C - H, copies alone for E, and does both at once for H. Copies that take a times as
long and computing that takes b times as long make it

    P' = P + (a - 1) E + (b - 1) (C - H) + h H,    min(a, b) - 1 <= h <= max(a, b) - 1

since what ran at once ends with the longer of both, which has grown by no less than the smaller and no more than the
larger factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from executor.units import format_factor, listed
from profiler.report.cells import ArmFigures, Cell
from profiler.report.shown_cells import best_and_worst, told_comparison

RATES_OFF: Final = 0.1
"""How far off the link and the device are each taken to be, either way: what known machines' rates scatter by."""
_MOST_TURNING: Final = 3  # cells in which a verdict could turn, by name
_FACTORS: Final = (1 - RATES_OFF, 1.0, 1 + RATES_OFF)


@dataclass(frozen=True, slots=True)
class PrefillParts:
    """Of one arm's prefill, in ns: all of it, and its parts that grow with slower copies, slower computing, or both."""

    whole_ns: float
    copying_ns: float
    computing_ns: float
    both_ns: float

    def bounds_ns(self, copies: float, computing: float) -> tuple[float, float]:
        """The least and the most that it takes where each takes so many times as long."""
        grown = self.whole_ns + (copies - 1) * self.copying_ns + (computing - 1) * self.computing_ns
        ends = sorted((copies, computing))
        return grown + (ends[0] - 1) * self.both_ns, grown + (ends[1] - 1) * self.both_ns


def factor_bounds(cell: Cell, name: str) -> tuple[float, float] | None:
    """Between which factors an arm is as fast as the baseline, in prefill, where the rates are up to RATES_OFF off.

    None where its parts are not known, or several devices shared the work.
    """
    sides = [_parts(cell.arms[arm], cell.n_prompt) for arm in (cell.baseline, name) if arm in cell.arms]
    if len(sides) < 2 or (baseline := sides[0]) is None or (arm := sides[1]) is None:
        return None
    found = list(_factors(baseline, arm))
    return min(found), max(found)


def told_sensitivity(cells: Sequence[Cell], best: str, arms: Sequence[str], keys: Sequence[str]) -> Iterator[str]:
    """A sentence: between which factors the best arm lies in its best and worst cell, and which verdicts could turn.

    keys: the sizes that name a cell. Nothing where no arm was found faster or slower.
    """
    told = [
        f"{' to '.join(map(format_factor, bounds))} x as fast{_at(cell, keys)}"
        for cell in best_and_worst(cells, best) or ()
        if (bounds := _bounds_of_verdict(cell, best)) is not None
    ]
    turning: dict[str, list[str]] = {}
    for cell, name in product(cells, arms):
        if (bounds := _bounds_of_verdict(cell, name)) is not None and bounds[0] < 1 < bounds[1]:
            turning.setdefault(_at(cell, keys), []).append(name)
    said = [f"{listed(names)}{at}" for at, names in turning.items()]
    if len(said) > _MOST_TURNING:
        said = [*said[:_MOST_TURNING], f"{len(said) - _MOST_TURNING} more"]
    parts = [f"{best} is {' and '.join(dict.fromkeys(told))}"] if told else []
    parts += [f"the order of {listed(said)} could turn"] if said else []
    if parts:
        yield f"If these rates are up to {RATES_OFF * 100:.0f} % off, {'; '.join(parts)}."


def _bounds_of_verdict(cell: Cell, name: str) -> tuple[float, float] | None:
    """`factor_bounds`, where the arm was found faster or slower: other verdicts claim nothing that could turn."""
    told = told_comparison(cell, name)
    return factor_bounds(cell, name) if told is not None and told[0].verdict in ("faster", "slower") else None


def _at(cell: Cell, keys: Sequence[str]) -> str:
    return f" at {named}" if (named := cell.named(keys)) else ""


def _factors(baseline: PrefillParts, arm: PrefillParts) -> Iterator[float]:
    for copies, computing in product(_FACTORS, _FACTORS):
        before, after = (side.bounds_ns(copies, computing) for side in (baseline, arm))
        if after[0] > 0:
            yield from (before[0] / after[1], before[1] / after[0])


def _parts(arm: ArmFigures, n_prompt: int | None) -> PrefillParts | None:
    rate = arm.median("prefill_tokens_per_s")
    names = ("exposed_copy_ns", "busy_compute_ns", "hidden_copy_ns")
    exposed, compute, hidden = (arm.median(name, "prefill") for name in names)
    if not rate or not n_prompt or arm.n_devices > 1 or exposed is None or compute is None or hidden is None:
        return None
    return PrefillParts(n_prompt / rate * 1e9, exposed, max(compute - hidden, 0.0), hidden)
