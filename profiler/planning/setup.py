"""One placement of a run with its arms, and what they are called in the capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from executor.placement.place import Placement
from profiler.planning.budget import Budgeted


@dataclass(frozen=True, slots=True)
class Setup:
    """One placement, measured in a session of its own. `suffix` sets its arms' names apart: `on@2`.

    `runs` are the arms in order; one that is named twice runs twice, which shows how much the machine itself varies.
    Under a VRAM budget the arms' placements differ; `placement` is then the first arm's.
    """

    suffix: str
    placement: Placement
    runs: tuple[str, ...]
    budgeted: Budgeted | None = None

    @property
    def arms(self) -> tuple[str, ...]:
        """Each arm once."""
        return tuple(dict.fromkeys(self.runs))

    @property
    def labels(self) -> dict[str, str]:
        """The names in the capture, in the order of `runs`, and the arm of each: `off`, `off@copy2`."""
        counts: Counter[str] = Counter()
        labels = {}
        for arm in self.runs:
            counts[arm] += 1
            labels[self.label(arm, counts[arm])] = arm
        return labels

    @property
    def session_placement(self) -> Placement | Mapping[str, Placement]:
        """What the session is given."""
        return self.placement if self.budgeted is None else self.budgeted.by_arm

    def placement_of(self, arm: str) -> Placement:
        return self.placement if self.budgeted is None else self.budgeted.by_arm[arm]

    def label(self, arm: str, copy: int = 1) -> str:
        """The arm's name in the capture."""
        return arm + (f"@copy{copy}" if copy > 1 else "") + self.suffix
