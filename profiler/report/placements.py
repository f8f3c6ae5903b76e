"""Arms of several placements: which placement an arm ran under, and what it is held against there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from profiler.manifest import Arm

FULL: Final = "full"
"""The arm that keeps everything resident whatever the placement (the policy of that name brings torch along)."""
_SUFFIX: Final = re.compile(r"@(\d+)$")


def placement_number(arm: Arm) -> int:
    """Which of the run's placements an arm was measured under: 2 for `on@2`, 1 for `on` and for other tools' arms."""
    found = _SUFFIX.search(arm.name) if "placement" in arm.options else None
    return int(found[1]) if found else 1


def own_baselines(arms: Sequence[Arm], names: Sequence[str]) -> dict[str, str]:
    """The first arm of its own placement, by arm: for those of another placement than the cell's baseline.

    names: the cell's arms, the baseline first. `full` has no weights to place, so it is no arm of any placement.
    """
    by_name = {arm.name: arm for arm in arms}
    number = {name: placement_number(by_name[name]) for name in names if name in by_name}
    first: dict[int, str] = {}
    own = {}
    for name, placed in number.items():
        if by_name[name].requested != FULL and first.setdefault(placed, name) not in (name, names[0]):
            own[name] = first[placed]
    return own
