"""How far a simulated or predicted comparison moves where the rates that it rests on are off: bounds from figures that
the report has, so that nothing is simulated again.

A prefill of P ns computes alone for C - H, copies alone for E, and does both at once for H. Copies that take a times as
long and computing that takes b times as long make it

    P' = P + (a - 1) E + (b - 1) (C - H) + h H,    min(a, b) - 1 <= h <= max(a, b) - 1

since what ran at once ends with the longer of both, which has grown by no less than the smaller and no more than the
larger factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from profiler.report.cells import ArmFigures, Cell

RATES_OFF: Final = 0.1
"""How far off the link and the device are each taken to be, either way: what known machines' rates scatter by."""
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
