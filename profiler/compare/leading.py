"""What a comparison says first: time to first token, prefill and decode of each cell and arm, or the time of the whole
where there are none, what the programs printed themselves, and in one sentence where the time went.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from executor.units import format_factor, format_value, listed
from profiler.arithmetic.stats import DEFAULT_NOISE
from profiler.compare.data import Change
from profiler.metrics import FIGURES, SPEEDS

_WHOLE: Final = ("wall_ns",)
MAX_PLACES: Final = 4  # cells and arms with rows of their own
# what a device's time divides into: compute, copies that no compute covers, and nothing
_PARTS: Final = {"busy_compute_ns": "compute", "exposed_copy_ns": "exposed copy", "idle_ns": "idle"}


def leading_changes(changes: Sequence[Change]) -> list[Change]:
    """TTFT, prefill and decode in this order, else the wall time, and then what the programs printed: of every cell and
    arm, those with the largest change of one first.
    """
    return [change for of_place in _by_place(changes) for change in _leading(of_place)]


def undecided(leading: Sequence[Change]) -> list[Change]:
    """Those of the leading changes whose cell and arm has no verdict in any of them, where there are several such."""
    decided = {change.where for change in leading if change.verdict != "inconclusive"}
    found = [change for change in leading if change.where not in decided]
    return found if len({change.where for change in found}) > 1 else []


def cause(changes: Sequence[Change]) -> str | None:
    """`Why, ub=512 · on: 30.0 us less a token; above all exposed copy, 60.0 us → 30.0 us a token; ...`.

    It is about the cell and arm that changed most, and of medians, so that parts need not add up. None where B took
    as long as A or did other work; a sentence that says so where copies and compute were not recorded.
    """
    of_place = next(iter(_by_place(changes)), {})
    wall = of_place.get("wall_ns")
    if wall is None or wall.different is not None or wall.a <= 0 or abs(wall.b / wall.a - 1) <= DEFAULT_NOISE:
        return None
    if wall.against is not None and wall.against.verdict == "no difference":
        return None
    if not all(name in of_place for name in _PARTS):
        return f"Why {wall.where} changed is not known: copies and compute were not recorded on both sides."
    return f"Why, {wall.where}: {'; '.join(_accounts(wall, of_place))}."


def _by_place(changes: Sequence[Change]) -> list[dict[str, Change]]:
    """The changes by figure of each cell and arm that has a leading figure, the largest leading change first."""
    found: dict[object, dict[str, Change]] = {}
    for change in changes:
        found.setdefault((change.cell_a, change.arm_a, change.cell_b, change.arm_b), {})[change.figure] = change
    led = [of_place for of_place in found.values() if _leading(of_place)]
    return sorted(led, key=lambda of_place: -max(change.size for change in _leading(of_place)))


def _leading(of_place: Mapping[str, Change]) -> list[Change]:
    timed = [of_place[name] for name in SPEEDS if name in of_place] or [
        of_place[name] for name in _WHOLE if name in of_place
    ]
    return [*timed, *(change for change in of_place.values() if change.reading is not None and change.is_judged)]


def _accounts(wall: Change, of_place: Mapping[str, Change]) -> Iterator[str]:
    """How much time, which part of it moved most the same way, which others moved against it, and the bytes."""
    took = wall.b - wall.a
    per = f"a {wall.per}"
    yield f"{_ns(abs(took))} {'more' if took > 0 else 'less'} {per}"
    moved = {name: of_place[name].b - of_place[name].a for name in _PARTS}
    with_it = max(moved, key=lambda name: moved[name] / took)
    if moved[with_it] / took > 0:
        yield f"above all {_PARTS[with_it]}, {_from_to(of_place[with_it])} {per}"
    against = [
        f"{_PARTS[name]}, {_from_to(of_place[name])}"
        for name in moved
        if name != with_it and moved[name] / took < -DEFAULT_NOISE
    ]
    if against:
        yield f"against it {listed(against)}"
    copied = of_place.get("bytes_h2d")
    if copied is not None and copied.a > 0:
        factor = copied.b / copied.a
        are_alike = abs(factor - 1) <= DEFAULT_NOISE
        yield "as many bytes copied" if are_alike else f"{format_factor(factor)} x the bytes copied"


def _from_to(change: Change) -> str:
    return f"{_ns(change.a)} → {_ns(change.b)}"


def _ns(value: float) -> str:
    return format_value(value, FIGURES["wall_ns"].unit)
