"""How far out of chance's reach a ratio is, for decisions about many ratios at once.

The bootstrap of `stats` reaches no further than the values that there are: of six pairs it cannot tell a chance of 1 in
40 from one of 1 in 1,000, which is what a decision over 36 cells asks for. Student's t-test of the differences can, and
errs to the safe side where values have heavy tails (`tests/profiler/arithmetic/test_chances.py` simulates it).

Of many, chances are weighed together as Simes does (Biometrika 73, 1986): the i-th smallest of m may be up to i/m of
what one alone may be. Where nothing is beyond its bound some is called so no more often than of one alone, be the
chances independent or rise and fall together; and what many show a little together counts, as it would not by
Bonferroni's 1/m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from executor.arrays import Floats
from profiler.arithmetic.stats import CONFIDENCE

ONE_SIDED: Final = (1 - CONFIDENCE) / 2
"""What lies beyond one end of an interval: the chance at which a single ratio is beyond a bound."""
_ROUNDING: Final = 1e-12  # of the values; less is arithmetic and not scatter


@dataclass(frozen=True, slots=True, eq=False)
class TwoSides:
    """The independent measurements of both sides: `a[i]` and `b[i]` of one pair, or each side's own. May hold 0."""

    a: Floats
    b: Floats
    are_pairs: bool = True

    def scatter(self, bound: float) -> bool:
        """Whether chance has a part in how far B lies from `bound` times A."""
        return min(len(self.a), len(self.b)) > 1 and self._error(bound)[0] > 0

    def chance(self, bound: float, *, above: bool) -> float:
        """The chance of means at least so far above (or below) `bound` times A's, were B's exactly that.

        Student's of pairs, Welch's of sides apart; 1 where there is one measurement, 0 or 1 where nothing scatters.
        """
        from scipy import special

        if min(len(self.a), len(self.b)) < 2:
            return 1.0
        sign = 1.0 if above else -1.0
        beyond = sign * (self.b.mean() - bound * self.a.mean())
        error, degrees = self._error(bound)
        if error == 0:
            return float(beyond <= self._rounding(bound))
        return float(special.stdtr(degrees, -beyond / error))

    def _error(self, bound: float) -> tuple[float, float]:
        """Standard error of B's mean minus `bound` times A's, 0 where that is rounding, and its degrees of freedom."""
        if self.are_pairs:
            apart = self.b - bound * self.a
            parts = [(float(np.var(apart, ddof=1)) / len(apart), len(apart) - 1)]
        else:
            sides = (self.b, bound * self.a)
            parts = [(float(np.var(side, ddof=1)) / len(side), len(side) - 1) for side in sides]
        total = sum(variance for variance, _ in parts)
        if total <= self._rounding(bound) ** 2:
            return 0.0, 1.0
        return float(np.sqrt(total)), total**2 / sum(variance**2 / degrees for variance, degrees in parts)

    def _rounding(self, bound: float) -> float:
        return _ROUNDING * float(self.b.mean() + abs(bound) * self.a.mean())


def allowed_chance(chances: Sequence[float]) -> float:
    """Up to which chance one of these is beyond its bound, so that of all together some is by chance in ONE_SIDED of
    the cases at most.
    """
    m = len(chances)
    if m == 0:
        return ONE_SIDED
    shares = ONE_SIDED * np.arange(1, m + 1) / m
    passed = np.flatnonzero(np.sort(np.asarray(chances)) <= shares)
    return float(shares[passed[-1]] if len(passed) else shares[0])
