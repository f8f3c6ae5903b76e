"""How two arms are judged: the paired ratio of medians, its bootstrap interval, and a verdict that may say "unclear".

The interval is the percentile bootstrap over pairs (both values of a pair are drawn together, so drift that hits both
cancels), widened for few pairs by Hesterberg's factor: the tail is Phi(-sqrt(n/(n-1)) t), with t the Student quantile
for n-1 degrees ("What Teachers Should Know About the Bootstrap", 2015, section 5.3). BCa was tried and left: on medians
of 6 to 20 pairs it covered 83 to 95 % where this one covers 95 to 99 % (`tests/profiler/arithmetic/test_stats.py`
simulates it).

Values of several processes (boots) are drawn in two steps, processes and then values inside each, so that what
sets processes apart widens the interval; n is then the number of processes. Of two to five the interval takes in
Student's of the processes' own ratios.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from executor.arrays import Flags, Floats, Int64

Better = Literal["lower", "higher"]
"""Which way a figure is good."""
Verdict = Literal["faster", "slower", "no difference", "inconclusive"]
# what is counted as one measurement: a pair of passes, or a process an arm; where no clock is read, a drawn routing, or
# the one result that there is
CountUnit = Literal["pairs", "boots", "routings", "results"]
Key = TypeVar("Key", bound=Hashable)

CONFIDENCE: Final = 0.95
MIN_PAIRS: Final = 6
# Without a clock nothing scatters but the routing, and arms share that: one result decides, or a second routing shows
# how much routings differ.
NEEDED: Final[Mapping[CountUnit, int]] = {"pairs": MIN_PAIRS, "boots": MIN_PAIRS, "routings": 2, "results": 1}
DEFAULT_NOISE: Final = 0.01
OUTLIER_MADS: Final = 14.826  # ten standard deviations of a normal; hyperfine's threshold for few runs
_N_RESAMPLES: Final = 4000
_SEED: Final = 20250
_MAX_LOG: Final = 300.0  # of a ratio's bound, which then is a number still
ONE_PROCESS: Final = "one process an arm: boots needed"
_SAME_WORK: Final = "same work: "
_OTHER_WORK: Final = "different workload: "
_MOSTLY_ZERO: Final = "about half of the values are 0, so that the ratio has no bounds"


@dataclass(frozen=True, slots=True)
class PairDesign:
    """How two arms were measured: side by side or not, and what counts as one measurement of an arm."""

    are_pairs: bool = True  # else the two are resampled apart, and the smaller count stands for the pairs
    unit: CountUnit = "pairs"


@dataclass(frozen=True, slots=True)
class Grounds:
    """Why no verdict is due, whatever the times: other work was done, or the same by design; null where neither."""

    different: str | None = None
    same: str | None = None


SIDE_BY_SIDE: Final = PairDesign()
NO_GROUNDS: Final = Grounds()


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median of `n` values. `low` and `high` bound it with 95 % confidence, whatever processes the values came from;
    None below six values, or six boots where boots are what counts.
    """

    median: float
    low: float | None
    high: float | None
    n: int
    n_outliers: int = 0  # flagged, never dropped


@dataclass(frozen=True, slots=True)
class Comparison:
    """An arm against the baseline: `ratio` is arm / baseline, whichever way is better."""

    ratio: float
    low: float | None
    high: float | None
    pairs: int
    verdict: Verdict
    reason: str | None = None  # why it is inconclusive
    unit: CountUnit = "pairs"  # what `pairs` counts

    @property
    def is_same_work(self) -> bool:
        """Whether both did the same by design, so that what differs is chance."""
        return self.reason is not None and self.reason.startswith(_SAME_WORK)

    @property
    def is_other_work(self) -> bool:
        """Whether the two did different work, so that their times say nothing of either."""
        return self.reason is not None and self.reason.startswith(_OTHER_WORK)

    @property
    def n_missing(self) -> int:
        """How many more pairs (or boots) a verdict needs; 0 where their number is not what keeps it away."""
        if self.verdict != "inconclusive" or self.is_same_work or self.is_other_work:
            return 0
        return max(NEEDED[self.unit] - self.pairs, 0)


def estimate(
    values: Sequence[float] | Floats, boots: Floats | None = None, unit: CountUnit = "pairs"
) -> Estimate | None:
    """Median and distribution-free interval (order statistics, binomial ranks) of the values that are not NaN.

    boots: the process of each value, whose repetitions are not independent of each other. By the unit `boots` each
    process counts as its median; by others the interval of several processes is that of the verdicts: processes are
    drawn, then values inside each. None where there are no values.
    """
    given = np.asarray(values, np.float64)
    is_known = np.isfinite(given)
    known = given[is_known]
    if len(known) == 0:
        return None
    of_known = None if boots is None else boots[is_known]
    counts_boots = of_known is not None and unit == "boots"
    units = np.sort(boot_medians(known, of_known)[1] if of_known is not None and counts_boots else known)
    n = len(units)
    n_outliers = int(outliers(known).sum())
    if of_known is not None and not counts_boots and n >= MIN_PAIRS and 1 < len(np.unique(of_known)) < n:
        return Estimate(_median(units), *_drawn_interval(known, of_known), len(known), n_outliers)
    if n < MIN_PAIRS or (rank := _rank(n)) < 1:
        return Estimate(_median(units), None, None, len(known), n_outliers)
    return Estimate(_median(units), float(units[rank - 1]), float(units[n - rank]), len(known), n_outliers)


def estimates(rows: Floats, boots: Floats, unit: CountUnit = "pairs") -> list[Estimate | None]:
    """`estimate` of each row, which holds a value a pass. Rows without a NaN are sorted together: a report has
    thousands, and numpy takes as long over one as over all.
    """
    n = rows.shape[1]
    if unit == "boots" or n == 0 or (n >= MIN_PAIRS and 1 < len(np.unique(boots)) < n):
        return [estimate(row, boots, unit) for row in rows]
    is_whole = np.asarray(np.isfinite(rows).all(axis=1))
    ascending = np.sort(rows[is_whole], axis=1)
    medians = _medians(ascending)
    distance = np.abs(ascending - medians[:, None])
    spread = _medians(np.sort(distance, axis=1))[:, None]
    n_outliers = ((distance > OUTLIER_MADS * spread) & (spread > 0)).sum(axis=1).tolist()
    rank = _rank(n) if n >= MIN_PAIRS else 0
    lows, highs = ([None] * len(medians) if rank < 1 else ascending[:, at].tolist() for at in (rank - 1, n - rank))
    plain = zip(medians.tolist(), lows, highs, n_outliers, strict=True)
    wholes = (Estimate(median, low, high, n, n_far) for median, low, high, n_far in plain)
    return [next(wholes) if whole else estimate(row, boots, unit) for row, whole in zip(rows, is_whole, strict=True)]


def _medians(ascending: Floats) -> Floats:
    """Of rows in ascending order; numpy's own takes longer over resamples of a handful."""
    middle = ascending.shape[1] // 2
    upper: Floats = ascending[:, middle]
    return upper if ascending.shape[1] % 2 else (ascending[:, middle - 1] + upper) / 2


def _median(ascending: Floats) -> float:
    """Of values in ascending order; numpy's own takes ten times as long over a handful."""
    middle = len(ascending) // 2
    return float(ascending[middle] if len(ascending) % 2 else (ascending[middle - 1] + ascending[middle]) / 2)


def _median_of_ratio(values: Floats) -> float:
    """The median that ratios are made of: of an even number the geometric mean of the middle two, beside 0 half the
    larger. So times and the rates made of them have one ratio, the one way round or the other.
    """
    ascending = np.sort(values)
    middle = len(ascending) // 2
    low, high = float(ascending[(len(ascending) - 1) // 2]), float(ascending[middle])
    return math.sqrt(low) * math.sqrt(high) if 0 < low < high else (low + high) / 2


def boot_medians(values: Floats, boots: Floats) -> tuple[Floats, Floats]:
    """The boots, ascending, and the median of each one's values."""
    numbers = np.unique(boots)
    return numbers, np.array([_median_of_ratio(values[boots == number]) for number in numbers])


@lru_cache(maxsize=256)
def _rank(n: int) -> int:
    """The largest r for which the r-th smallest and r-th largest of n values bound the median with CONFIDENCE."""
    from scipy import special  # takes 0.2 s to import, scipy.stats half a second; traces without passes need neither

    ranks = np.arange(n + 1)
    return int(np.argmax(special.bdtr(ranks, n, 0.5) >= (1 - CONFIDENCE) / 2))


def outliers(values: Floats) -> Flags:
    """Which values lie more than OUTLIER_MADS median absolute deviations from the median."""
    if len(values) == 0:
        return np.zeros(0, np.bool_)
    distance = np.abs(values - _median(np.sort(values)))
    spread = _median(np.sort(distance))
    return np.asarray((distance > OUTLIER_MADS * spread) & (spread > 0))


def shared_keys(baseline: Mapping[Key, float], arm: Mapping[Key, float], *, with_zeros: bool = False) -> list[Key]:
    """The keys under which both have a finite and positive value (or 0, `with_zeros`), in the baseline's order."""
    both = [(key, value, arm.get(key)) for key, value in baseline.items()]
    return [key for key, *values in both if all(is_usable(value, with_zeros=with_zeros) for value in values)]


def compare(
    baseline: Floats,
    arm: Floats,
    *,
    better: Better,
    noise: float = DEFAULT_NOISE,
    design: PairDesign = SIDE_BY_SIDE,
    boots: tuple[Floats, Floats] | None = None,
    grounds: Grounds = NO_GROUNDS,
) -> Comparison | None:
    """Judge an arm against the baseline; None where either has no values, or the baseline's median is 0.

    Of pairs, baseline[i] and arm[i] were measured side by side. boots: the processes that the values of both come from.
    Values may be 0; where so many of the baseline's are that its median might be too, there is no interval.
    """
    n_pairs, unit = min(len(baseline), len(arm)), design.unit
    if n_pairs == 0 or (of_baseline := _median_of_ratio(baseline)) == 0:
        return None
    ratio = _median_of_ratio(arm) / of_baseline
    interval = _bootstrap(baseline, arm, boots or (None, None), are_pairs=design.are_pairs) if n_pairs > 1 else None
    if unit == "results":
        interval = ratio, ratio
    if interval is not None:
        interval = min(interval[0], ratio), max(interval[1], ratio)  # logarithms round
    low, high = interval or (None, None)
    if grounds.different is not None:
        return Comparison(ratio, low, high, n_pairs, "inconclusive", f"{_OTHER_WORK}{grounds.different}", unit)
    if grounds.same is not None:
        return Comparison(ratio, low, high, n_pairs, "inconclusive", f"{_SAME_WORK}{grounds.same}", unit)
    verdict, reason = _verdict(ratio, interval, n_pairs, better, noise, unit)
    return Comparison(ratio, low, high, n_pairs, verdict, reason, unit)


def _verdict(
    ratio: float,
    interval: tuple[float, float] | None,
    n_pairs: int,
    better: Better,
    noise: float,
    unit: CountUnit,
) -> tuple[Verdict, str | None]:
    """A change needs an interval that leaves out 1 and a ratio beyond the noise; "no difference" one inside it."""
    if n_pairs >= NEEDED[unit] and interval is None:
        return "inconclusive", _MOSTLY_ZERO
    if n_pairs < NEEDED[unit] or interval is None:
        few = f"{n_pairs} of the {NEEDED[unit]} {unit} that a verdict needs"
        return "inconclusive", ONE_PROCESS if unit == "boots" and n_pairs == 1 else few
    low, high = interval
    least = 1 / (1 + noise)  # a figure and its inverse are judged alike
    if least <= low and high <= 1 + noise:
        return "no difference", None
    if high < 1 and ratio < least:
        return ("faster" if better == "lower" else "slower"), None
    if low > 1 and ratio > 1 + noise:
        return ("slower" if better == "lower" else "faster"), None
    if high - low <= noise and any(low < edge < high for edge in (least, 1 + noise)):
        at = f"the difference lies at the noise threshold of {noise * 100:g} %"
        return "inconclusive", f"{at}; more repetitions will hardly settle it"
    more = "more boots" if unit == "boots" else "repeat more often"
    return "inconclusive", f"the interval is too wide: {more}"


def _bootstrap(
    baseline: Floats, arm: Floats, boots: tuple[Floats | None, Floats | None], *, are_pairs: bool
) -> tuple[float, float] | None:
    below, n = _resampled(baseline, boots[0], 0)
    above, n_arm = _resampled(arm, boots[0], 0) if are_pairs else _resampled(arm, boots[1], 1)
    ratios = np.divide(above, below, out=np.full(len(below), np.inf), where=below > 0)
    tail = _tail(min(n, n_arm))
    if np.isinf(ratios).sum() > int(tail * (len(ratios) - 1)):  # the upper end would lie between values of which one is
        return None
    ends_at = [tail, 1 - tail]
    is_above_0 = ratios.min() > 0  # then as logarithms, so that inverse figures have inverse ends
    low, high = np.exp(np.quantile(np.log(ratios), ends_at)) if is_above_0 else np.quantile(ratios, ends_at)
    of_boots = _few_boots_interval(baseline, arm, boots[0]) if are_pairs and boots[0] is not None else None
    ends = [float(low), float(high), *(of_boots or ())]
    return min(ends), max(ends)


def _resampled(values: Floats, boots: Floats | None, stream: int) -> tuple[Floats, int]:
    """The median of each resample, and how many independent units they are drawn from."""
    of = None if boots is None else np.asarray(boots, np.float64).tobytes()
    return _resampled_medians(np.asarray(values, np.float64).tobytes(), of, stream)


@lru_cache(maxsize=1024)  # of 32 KB: an arm's values meet those of every other arm, and again when another is A
def _resampled_medians(values: bytes, boots: bytes | None, stream: int) -> tuple[Floats, int]:
    given = np.frombuffer(values)
    drawn, n = _drawn(len(given), None if boots is None else np.frombuffer(boots), stream)
    if given.min() > 0:  # `_median_of_ratio`
        medians = np.exp(_medians(np.sort(np.log(given)[drawn], axis=1)))
    else:
        medians = _medians(np.sort(given[drawn], axis=1))
    medians.setflags(write=False)
    return medians, n


def _few_boots_interval(baseline: Floats, arm: Floats, boots: Floats) -> tuple[float, float] | None:
    """Student's interval of the processes' own ratios; None of one process, and from MIN_PAIRS processes up.

    Resamples of two processes reach no further than the two did, which holds the truth every second time.
    """
    numbers = np.unique(boots)
    if not 1 < len(numbers) < MIN_PAIRS:
        return None
    medians = np.array([[_median_of_ratio(values[boots == one]) for values in (baseline, arm)] for one in numbers])
    if not (medians > 0).all():
        return None
    logs = np.log(medians[:, 1] / medians[:, 0])
    half = _student(len(logs)) * np.std(logs, ddof=1) / np.sqrt(len(logs))
    low, high = np.exp(np.clip(np.mean(logs) + np.array([-half, half]), -_MAX_LOG, _MAX_LOG))
    return float(low), float(high)


@lru_cache(maxsize=256)
def _student(n: int) -> float:
    """Student's two-sided quantile for n values."""
    from scipy import special

    return float(special.stdtrit(n - 1, (1 + CONFIDENCE) / 2))


@lru_cache(maxsize=256)
def _tail(n: int) -> float:
    """The share of resamples beyond each end of an interval, of n independent units."""
    from scipy import special

    return float(special.ndtr(-np.sqrt(n / (n - 1)) * _student(n)))


def _drawn_interval(values: Floats, boots: Floats) -> tuple[float, float]:
    """Interval of the median of several processes' values.

    A report has hundreds of them over the same processes: how often a resample drew each value is kept, and counting
    finds its median.
    """
    order = np.argsort(values)
    ascending = values[order]
    if ascending[0] == ascending[-1]:
        return float(ascending[0]), float(ascending[0])
    counts = _times_drawn(tuple(boots.tolist()))
    at_most = counts[:, order].cumsum(axis=1, dtype=np.int32)  # of a resample's values, those up to each one
    n_drawn, tail = int(at_most[0, -1]), _tail(len(np.unique(boots)))
    is_lower, is_upper = (2 * at_most >= n_drawn, 2 * at_most > n_drawn)  # the lower, the upper median is among them
    low = np.argmax(is_lower.mean(axis=0) > tail)
    high = np.argmax(is_upper.mean(axis=0) >= 1 - tail)
    return float(ascending[low]), float(ascending[high])


@lru_cache(maxsize=32)
def _times_drawn(boots: tuple[float, ...]) -> npt.NDArray[np.int16]:
    """How often each resample (a row) draws the value of each position."""
    n = len(boots)
    drawn, _ = _drawn(n, np.array(boots), 0)
    cells = np.arange(len(drawn))[:, None] * n + drawn
    return np.bincount(cells.ravel(), minlength=len(drawn) * n).reshape(-1, n).astype(np.int16)


def _drawn(n: int, boots: Floats | None, stream: int) -> tuple[Int64, int]:
    """Positions of values, a row a resample, and how many independent units they are drawn from."""
    sizes = np.unique(boots, return_counts=True)[1] if boots is not None else np.ones(1)
    if boots is None or len(sizes) in (1, n):
        return _draws(n, stream), n
    by_boot = np.argsort(boots, kind="stable")
    rng = np.random.default_rng([_SEED, n, stream, len(sizes)])
    chosen = rng.integers(0, len(sizes), (_N_RESAMPLES, len(sizes)))
    # a boot with fewer values is drawn from as often as the largest, so that all weigh alike
    inside = rng.random((*chosen.shape, sizes.max())) * sizes[chosen][..., None]
    first = (np.cumsum(sizes) - sizes)[chosen]
    return by_boot[(first[..., None] + inside.astype(np.int64)).reshape(_N_RESAMPLES, -1)], len(sizes)


@lru_cache(maxsize=64)
def _draws(n: int, stream: int) -> Int64:
    return np.random.default_rng([_SEED, n, stream]).integers(0, n, (_N_RESAMPLES, n))


def is_usable(value: float | None, *, with_zeros: bool = False) -> bool:
    """Whether a ratio can be made of it: known, finite and positive. with_zeros: or 0, of figures that may be."""
    return value is not None and bool(np.isfinite(value)) and (value > 0 or (with_zeros and value == 0))
