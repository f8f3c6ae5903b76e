"""What a comparison says, as plain data, and `--fail-on`: a figure, a direction and a limit, decided by the
interval, so that a gate may be inconclusive.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from executor.errors import HprofError, did_you_mean
from profiler.arithmetic.stats import NEEDED, Comparison, CountUnit, Verdict
from profiler.metrics import FIGURES
from profiler.metrics.figures import Figure
from profiler.metrics.passes import CellKey

COMPARE_SCHEMA: Final = 1
DeviceUnit = Literal["GB/s", "share", "bytes"]
GateState = Literal["passed", "failed", "inconclusive"]
ChangeVerdict = Verdict | Literal["less", "more"]

# a figure in bytes is no speed: the lower the better, it is `less` where a time would be `faster`
_OF_BYTES: Final[dict[Verdict, ChangeVerdict]] = {"faster": "less", "slower": "more"}
# figures that grow with the work done: compared for each token where the numbers of tokens are known
PER_TOKEN: Final = frozenset(
    {"wall_ns", "bytes_h2d", "busy_copy_ns", "busy_compute_ns", "hidden_copy_ns", "exposed_copy_ns", "idle_ns"}
    | {"wait_ns", "host_compute_ns", "selective_saving_bytes"}
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that A and B do not share; None: not recorded."""

    key: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one cell and arm: medians of A and B, and B against A. `per` is what it was divided by."""

    cell_a: CellKey
    cell_b: CellKey
    arm_a: str
    arm_b: str
    figure: str  # a name of FIGURES, or of a reading
    per: Literal["token", "pass"]
    a: float
    b: float
    n_a: int
    n_b: int
    pairs: int  # what a verdict counts: pairs of passes, or the fewest processes of a side
    unit: CountUnit
    against: Comparison | None  # None: there is no ratio, as a value is zero
    different: str | None  # why the two did not do the same work
    reading: Figure | None = None  # what the programs printed themselves, described by their captures

    @property
    def described(self) -> Figure:
        """Its label, unit and good direction."""
        return self.reading or FIGURES[self.figure]

    @property
    def is_judged(self) -> bool:
        """Whether one way is better, so that there is a verdict."""
        return self.described.better is not None

    @property
    def is_memory(self) -> bool:
        """Whether it is told in bytes: less or more, not faster or slower."""
        return self.described.unit == "bytes"

    @property
    def verdict(self) -> ChangeVerdict | None:
        """Null where neither way is better, or there is no ratio."""
        if not self.is_judged or self.against is None:
            return None
        found = self.against.verdict
        return _OF_BYTES.get(found, found) if self.is_memory else found

    @property
    def has_enough(self) -> bool:
        """Whether the same work was measured often enough for an interval to mean something."""
        return self.different is None and self.pairs >= NEEDED[self.unit]

    @property
    def size(self) -> float:
        """How far B is from A, alike both ways: |ln(B / A)|; infinite from or to zero."""
        if self.a == self.b:
            return 0.0
        return abs(math.log(self.b / self.a)) if self.a > 0 and self.b > 0 else math.inf

    @property
    def cell(self) -> str:
        """The cell, both sides' where they differ."""
        return _both(self.cell_a.flags, self.cell_b.flags)

    @property
    def arm(self) -> str:
        """The arm, both sides' where they differ."""
        return _both(self.arm_a, self.arm_b)

    @property
    def where(self) -> str:
        """Cell and arm."""
        return f"{self.cell} · {self.arm}"


def _both(a: str, b: str) -> str:
    return a if a == b else f"{a} → {b}"


@dataclass(frozen=True, slots=True)
class DeviceChange:
    """A figure of a whole trace that does not grow with its length; no repeats, so no verdict."""

    device: str
    figure: str
    unit: DeviceUnit
    a: float | None
    b: float | None


@dataclass(frozen=True, slots=True)
class Gate:
    """What became of one --fail-on."""

    expression: str
    state: GateState
    reason: str


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One of the two: a capture, and what of it was taken."""

    spec: str
    capture: str
    source: str
    state: str


@dataclass(frozen=True, slots=True)
class CompareResult:
    """Everything that `hprof compare` shows."""

    a: ComparedSide
    b: ComparedSide
    differences: list[Difference]
    changes: list[Change]  # the largest first
    devices: list[DeviceChange]
    warnings: list[str]
    gates: list[Gate] = field(default_factory=list)

    def failed(self, *, allow_inconclusive: bool) -> bool:
        """Whether a gate says no."""
        states = {gate.state for gate in self.gates}
        return "failed" in states or ("inconclusive" in states and not allow_inconclusive)


ALIASES: Final = {
    "ttft": "ttft_ns",
    "prefill": "prefill_tokens_per_s",
    "decode": "decode_tokens_per_s",
    "wall": "wall_ns",
    "bytes": "bytes_h2d",
    "busy_copy": "busy_copy_ns",
    "hidden": "hidden_ratio",
    "exposed": "exposed_copy_ns",
    "overlap": "overlap_efficiency",
    "idle": "idle_ns",
    "vram": "vram_peak_bytes",
}
_MAX_NAMED: Final = 8  # figures that a gate without its own offers
_EXPRESSION: Final = re.compile(r"^\s*([A-Za-z][\w./% -]{0,39}?)\s*([<>])\s*([+-]?\d{1,6}(?:\.\d{1,6})?)\s*%\s*$")


@dataclass(frozen=True, slots=True)
class Limit:
    """Fails where B / A - 1 is above (or below) `share`."""

    text: str
    figure: str
    above: bool
    share: float


def parse_limit(text: str, readings: Mapping[str, Figure] | None = None) -> Limit:
    """Read `FIGURE>+N%` or `FIGURE<-N%`; HprofError says what is wrong with it, or that it would fail what is better.

    readings: by name the figures that the compared programs printed themselves, which a limit may be about too.
    """
    described = {**FIGURES, **(readings or {})}
    match = _EXPRESSION.match(text)
    if match is None:
        raise HprofError(f'--fail-on "{text[:60]}" is no limit; write for example "ttft>+5%" or "decode<-3%".')
    name = match[1] if match[1] in (readings or {}) else ALIASES.get(match[1], match[1])
    if name not in described:
        known = [*(readings or {}), *ALIASES]
        hint = did_you_mean(match[1], [*known, *FIGURES]) or f"the figures are {', '.join(known)}."
        raise HprofError(f'--fail-on "{text[:60]}" names no figure; {hint}')
    if (better := described[name].better) is not None and (match[2] == ">") == (better == "higher"):
        worse = f"{match[1]}{'<-' if better == 'higher' else '>+'}{match[3].lstrip('+-')}%"
        raise HprofError(
            f'--fail-on "{text[:60]}" would fail what is better, as {better} is better here; '
            f'write "{worse}" to fail what is worse.'
        )
    return Limit(text.strip(), name, match[2] == ">", float(match[3]) / 100)


def decide(limit: Limit, changes: Sequence[Change], not_seen: Sequence[str] = ()) -> Gate:
    """The worst of the limit's states over all cells and arms. not_seen: where the figure cannot be compared; then a
    gate may fail, but not pass.
    """
    decided = [(_state(limit, change), change) for change in changes if change.figure == limit.figure]
    if not decided and not_seen:
        return Gate(limit.text, "inconclusive", not_seen[0])
    if not decided:
        missing = f"neither side has {_label(limit.figure)} to compare"
        return Gate(limit.text, "inconclusive", f"{missing}{_what_there_is(changes)}")
    for state in ("failed", "inconclusive", "passed"):
        if state == "passed" and not_seen:
            more = f", and {len(not_seen) - 1} more" if len(not_seen) > 1 else ""
            return Gate(limit.text, "inconclusive", f"{not_seen[0]}{more}")
        hit = [change for found, change in decided if found == state]
        if hit:
            worst = max(hit, key=lambda change: _share(change) * (1 if limit.above else -1))
            more = f", and {len(hit) - 1} more" if len(hit) > 1 else ""
            return Gate(limit.text, state, f"{_told(worst)}{more}")
    raise AssertionError(decided)


def _what_there_is(changes: Sequence[Change]) -> str:
    """`; limits can name wall, tokens/s`: the figures by the words that --fail-on takes."""
    short = {figure: alias for alias, figure in ALIASES.items()}
    known = list(dict.fromkeys(short.get(change.figure, change.figure) for change in changes))
    named = [name for name in known if name in ALIASES or name not in FIGURES] or known[:_MAX_NAMED]
    return f"; a limit can name {', '.join(named[:_MAX_NAMED])}" if named else ""


def _label(figure: str) -> str:
    return FIGURES[figure].label if figure in FIGURES else figure


def _state(limit: Limit, change: Change) -> GateState:
    """The whole interval beyond the limit: failed. None of it: passed. Both sides of it, or no interval: unclear."""
    if not change.has_enough:
        return "inconclusive"
    found = change.against
    if found is None:  # from or to zero: there is no interval, but the direction is plain
        beyond = _share(change) > limit.share if limit.above else _share(change) < limit.share
        return "failed" if beyond else "passed"
    if found.low is None or found.high is None:
        return "inconclusive"
    bound = 1 + limit.share
    if limit.above:
        return "failed" if found.low > bound else "passed" if found.high <= bound else "inconclusive"
    return "failed" if found.high < bound else "passed" if found.low >= bound else "inconclusive"


def _share(change: Change) -> float:
    """B / A - 1."""
    if change.a == change.b:
        return 0.0
    return change.b / change.a - 1 if change.a > 0 else math.inf


def _told(change: Change) -> str:
    found = change.against
    if found is None:
        return f"{change.where}: from {change.a:.4g} to {change.b:.4g}"
    bounds = ""
    if found.low is not None and found.high is not None:
        bounds = f" [{(found.low - 1) * 100:+.1f}, {(found.high - 1) * 100:+.1f}]"
    reason = f" ({found.reason})" if found.reason and not change.has_enough else ""
    return f"{change.where}: {(found.ratio - 1) * 100:+.1f}{bounds} %{reason}"
