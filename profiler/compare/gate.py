"""`--fail-on`: a figure, a direction and a limit, decided by intervals, so that a gate may be inconclusive.

All cells, arms and limits decide together whether a build fails, so the more there are the surer each has to be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from executor.errors import HprofError, did_you_mean
from profiler.arithmetic.chances import allowed_chance
from profiler.compare.data import Change, Gate, GateGround, GateState
from profiler.metrics import FIGURES
from profiler.metrics.figures import Figure

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
_EXPRESSION: Final = re.compile(
    r"^\s*([A-Za-z][\w./% -]{0,39}?)\s*([<>])\s*([+-]?\d{1,6}(?:\.\d{1,6})?)\s*%\s*$", re.ASCII
)


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


@dataclass(frozen=True, slots=True)
class _Judged:
    """A limit on one cell and arm: where its own 95 % interval lies, and how likely chance alone is to do that."""

    limit: Limit
    change: Change
    alone: GateState
    chance: float | None  # None where chance has no part in it, or nothing can be said


def decide(
    limits: Sequence[Limit], changes: Sequence[Change], not_seen: Mapping[str, Sequence[str]] | None = None
) -> tuple[list[Gate], GateGround]:
    """A gate a limit, the worst of its states over all cells and arms, and what they share.

    A build fails by any cell and arm of any limit, so all are weighed together. It passes by all, each by its own
    interval. not_seen: by figure where it cannot be compared; then a gate may fail, but not pass.
    """
    judged = [_judged(limit, change) for limit in limits for change in changes if change.figure == limit.figure]
    chances = [one.chance for one in judged if one.chance is not None]
    allowed = allowed_chance(chances)
    ground = GateGround(len(chances), 1 - 2 * allowed)
    gates = [
        _gate(
            limit,
            [one for one in judged if one.limit is limit],
            changes,
            (not_seen or {}).get(limit.figure, ()),
            ground,
        )
        for limit in limits
    ]
    return gates, ground


def _gate(
    limit: Limit, judged: Sequence[_Judged], changes: Sequence[Change], not_seen: Sequence[str], ground: GateGround
) -> Gate:
    if not judged and not_seen:
        return Gate(limit.text, "inconclusive", not_seen[0])
    if not judged:
        missing = f"neither side has {_label(limit.figure)} to compare"
        return Gate(limit.text, "inconclusive", f"{missing}{_what_there_is(changes)}")
    decided = [(_together(one, ground), one.change) for one in judged]
    for state in ("failed", "inconclusive", "passed"):
        if state == "passed" and not_seen:
            more = f", and {len(not_seen) - 1} more" if len(not_seen) > 1 else ""
            return Gate(limit.text, "inconclusive", f"{not_seen[0]}{more}", len(judged))
        hit = [change for found, change in decided if found == state]
        if hit:
            worst = max(hit, key=lambda change: _share(change) * (1 if limit.above else -1))
            more = f", and {len(hit) - 1} more" if len(hit) > 1 else ""
            is_alone = state == "inconclusive" and any(x.change is worst and x.alone == "failed" for x in judged)
            by_itself = f" (beyond, but not by {level_told(ground)})" if is_alone else ""
            return Gate(limit.text, state, f"{_told(worst)}{by_itself}{more}", len(judged))
    raise AssertionError(decided)


def level_told(ground: GateGround) -> str:
    """`the 99.86 % that 36 comparisons ask for`; of one comparison `the 95 %`."""
    level = f"{ground.level * 100:.4g} %"
    return f"the {level} that {ground.comparisons} comparisons ask for" if ground.comparisons > 1 else f"the {level}"


def _together(one: _Judged, ground: GateGround) -> GateState:
    """What it is beside the others: failing asks for more the more there are."""
    if one.alone != "failed" or one.chance is None:
        return one.alone
    if ground.comparisons == 1 and one.change.against is not None:
        return one.alone  # by its interval, as a verdict
    return "failed" if one.chance <= (1 - ground.level) / 2 else "inconclusive"


def _judged(limit: Limit, change: Change) -> _Judged:
    alone = _alone(limit, change)
    bound = 1 + limit.share
    can_say = change.has_enough and (change.against is None or change.against.low is not None)
    if not can_say or not change.samples.scatter(bound):
        return _Judged(limit, change, alone, None)
    chance = change.samples.chance(bound, above=limit.above) if alone == "failed" else 1.0
    return _Judged(limit, change, alone, chance)


def _what_there_is(changes: Sequence[Change]) -> str:
    """`; limits can name wall, tokens/s`: the figures by the words that --fail-on takes."""
    short = {figure: alias for alias, figure in ALIASES.items()}
    known = list(dict.fromkeys(short.get(change.figure, change.figure) for change in changes))
    named = [name for name in known if name in ALIASES or name not in FIGURES] or known[:_MAX_NAMED]
    return f"; a limit can name {', '.join(named[:_MAX_NAMED])}" if named else ""


def _label(figure: str) -> str:
    return FIGURES[figure].label if figure in FIGURES else figure


def _alone(limit: Limit, change: Change) -> GateState:
    """The whole interval beyond the limit: failed. None of it: passed. Both sides of it, or no interval: unclear."""
    if not change.has_enough:
        return "inconclusive"
    found = change.against
    if found is None:  # from or to zero: there is no interval, but the direction is plain; chance may still refuse it
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
