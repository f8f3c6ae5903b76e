"""Arms of several placements: which one an arm was measured under, and the first arm there, its own baseline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from profiler.manifest import ManifestArm

_SUFFIX: Final = re.compile(r"@(\d+)$")


def placement_number(arm: ManifestArm) -> int:
    """Which of the run's placements an arm was measured under: 2 for `on@2`, 1 for `on` and for other tools' arms."""
    found = _SUFFIX.search(arm.name) if "placement" in arm.options else None
    return int(found[1]) if found else 1


def own_baselines(arms: Sequence[ManifestArm], names: Sequence[str]) -> dict[str, str]:
    """The first arm of its own placement, by arm: for those of another placement than the cell's baseline.

    names: the cell's arms, the baseline first. One that is resident by design is no arm of any placement.
    """
    by_name = {arm.name: arm for arm in arms}
    number = {name: placement_number(by_name[name]) for name in names if name in by_name}
    first: dict[int, str] = {}
    own = {}
    for name, placed in number.items():
        if not by_name[name].is_resident and first.setdefault(placed, name) not in (name, names[0]):
            own[name] = first[placed]
    return own
