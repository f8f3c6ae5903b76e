"""What a comparison says, as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from profiler.arithmetic.chances import TwoSides
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
    samples: TwoSides  # what `against` was made of
    reading: Figure | None = None  # what the programs printed themselves, described by their captures
    is_itself: bool = False  # whether both sides are the same passes, which judge nothing

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
        """Whether the same work was measured often enough, and twice, for an interval to mean something."""
        return self.different is None and not self.is_itself and self.pairs >= NEEDED[self.unit]

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

    def named(self, keys: Sequence[str]) -> str:
        """The cell by its sizes of these keys, `ub=64`."""
        return _both(self.cell_a.named(keys), self.cell_b.named(keys))

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
    """What became of one --fail-on: of `comparisons`, one a cell and arm, the worst decides."""

    expression: str
    state: GateState
    reason: str
    comparisons: int = 0


@dataclass(frozen=True, slots=True)
class GateGround:
    """What all gates of a comparison share: how many comparisons chance has a part in, and how sure each has to be of
    its limit, so that equal builds fail any of them in no more than 2.5 of 100 cases.
    """

    comparisons: int
    level: float  # of a two-sided interval: 0.95 of one comparison alone


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
    ground: GateGround | None = None  # None without gates

    def failed(self, *, allow_inconclusive: bool) -> bool:
        """Whether a gate says no."""
        states = {gate.state for gate in self.gates}
        return "failed" in states or ("inconclusive" in states and not allow_inconclusive)
