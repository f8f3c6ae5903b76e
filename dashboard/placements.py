"""Arms whose weights lie elsewhere: what differs between two placements of one capture, and who shares an arm's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.manifest import Arm, Manifest
from profiler.report.placements import FULL, placement_number
from profiler.report.residency import residency
from profiler.report.units import format_bytes


@dataclass(frozen=True, slots=True)
class OtherPlacement:
    """A and B of different placements: each in a few words, and the pair that differs in the policy alone."""

    a: str  # `8 host layers`
    b: str
    sentence: str
    alike: tuple[str, str] | None  # arms of B's placement, or of A's


def other_placement(manifest: Manifest, a: str, b: str) -> OtherPlacement | None:
    """Null where A and B share a placement, or one of them keeps everything resident whatever the placement."""
    arms = {arm.name: arm for arm in manifest.arms}
    names = (a, b)
    places = [_suffix(manifest, name) for name in names]
    if places[0] == places[1] or not all(name in arms and arms[name].requested != FULL for name in names):
        return None
    told = " and ".join(f"{name} has {_told(manifest, arms[name])}" for name in names)
    sentence = f"Their weights lie elsewhere: {told}. So the policy alone does not explain the difference."
    in_short = [_in_short(manifest, arms[name]) for name in names]
    return OtherPlacement(in_short[0], in_short[1], sentence, _alike(manifest, list(arms), a, b))


def partner(manifest: Manifest, others: Sequence[str], a: str) -> int:
    """Which of the other arms to hold against A first: one of its placement, else the first."""
    return next((at for at, name in enumerate(others) if _suffix(manifest, name) == _suffix(manifest, a)), 0)


def _suffix(manifest: Manifest, name: str) -> str:
    """`@3` for an arm of the third placement, nothing for one of the first."""
    number = next((placement_number(arm) for arm in manifest.arms if arm.name == name), 1)
    return f"@{number}" if number > 1 else ""


def _alike(manifest: Manifest, names: Sequence[str], a: str, b: str) -> tuple[str, str] | None:
    ends = {name: _suffix(manifest, name) for name in (a, b)}
    pairs = [(a.removesuffix(ends[a]) + ends[b], b), (a, b.removesuffix(ends[b]) + ends[a])]
    return next((pair for pair in pairs if pair[0] != pair[1] and set(pair) <= set(names)), None)


def _told(manifest: Manifest, arm: Arm) -> str:
    found, spelled = residency(manifest, arm), arm.options.get("placement")
    how = f" ({spelled})" if isinstance(spelled, str) and spelled else ""
    if found is None:
        return f"a placement of its own{how}"
    return f"weights of {_layers(len(found.host_layers))} in host memory, {format_bytes(found.host_bytes)}{how}"


def _in_short(manifest: Manifest, arm: Arm) -> str:
    found = residency(manifest, arm)
    return "a placement of its own" if found is None else _layers(len(found.host_layers), "host ")


def _layers(count: int, kind: str = "") -> str:
    return f"{count} {kind}layer{'' if count == 1 else 's'}"
