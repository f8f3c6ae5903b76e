"""`--fail-on "ttft>+5%"`: a figure, a direction, a limit; decided by the interval, so a gate may be inconclusive."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from executor.errors import HprofError
from profiler.compare.data import Change, Gate, GateState
from profiler.metrics import FIGURES

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
_EXPRESSION: Final = re.compile(r"^\s*([a-z0-9_]{1,40})\s*([<>])\s*([+-]?\d{1,6}(?:\.\d{1,6})?)\s*%\s*$")


@dataclass(frozen=True, slots=True)
class Limit:
    """Fails where B / A - 1 is above (or below) `share`."""

    text: str
    figure: str
    above: bool
    share: float


def parse_limit(text: str) -> Limit:
    """Read `FIGURE>+N%` or `FIGURE<-N%`; HprofError says what is wrong with it."""
    match = _EXPRESSION.match(text)
    if match is None:
        raise HprofError(f'--fail-on "{text[:60]}" is no limit; write for example "ttft>+5%" or "decode<-3%".')
    name = ALIASES.get(match[1], match[1])
    if name not in FIGURES:
        near = get_close_matches(match[1], [*ALIASES, *FIGURES], n=1)
        hint = f"did you mean {near[0]}?" if near else f"the figures are {', '.join(ALIASES)}."
        raise HprofError(f'--fail-on "{text[:60]}" names no figure; {hint}')
    return Limit(text.strip(), name, match[2] == ">", float(match[3]) / 100)


def decide(limit: Limit, changes: Sequence[Change]) -> Gate:
    """The worst of the limit's states over all cells and arms."""
    decided = [(_state(limit, change), change) for change in changes if change.figure == limit.figure]
    if not decided:
        return Gate(limit.text, "inconclusive", f"neither side has {FIGURES[limit.figure].label} to compare")
    for state in ("failed", "inconclusive", "passed"):
        hit = [change for found, change in decided if found == state]
        if hit:
            worst = max(hit, key=lambda change: _share(change) * (1 if limit.above else -1))
            more = f", and {len(hit) - 1} more" if len(hit) > 1 else ""
            return Gate(limit.text, state, f"{_told(worst)}{more}")
    raise AssertionError(decided)


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
