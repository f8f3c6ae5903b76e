"""How a comparison is told: how many times as fast, the verdict in a word, and what a verdict still needs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence, Set
from typing import Final

from executor.units import format_factor
from profiler.arithmetic.stats import NEEDED, Better, Comparison
from profiler.manifest import is_run
from profiler.metrics import FIGURES

TELLING: Final = ("prefill_tokens_per_s", "ttft_ns", "decode_tokens_per_s", "wall_ns")
_OF_THE_FOLDER: Final = ("--force", "--json", "--all")
SAME_WORK: Final = "same work"
OTHER_WORK: Final = "other work"
UNCLEAR: Final = "unclear"
_COUNTED: Final = {
    "pairs": "repetitions",
    "boots": "processes an arm",
    "routings": "draws of the routing",
    "results": "repetitions",
}
_OPTION: Final = {"pairs": "-r", "boots": "--boots", "routings": "-r", "results": "-r"}
_NAMES_OF: Final = {"-r": ("-r", "--repetitions"), "--boots": ("--boots",), "-o": ("-o", "--output")}


def as_fast(ratio: float, figure: str) -> float:
    """How many times as fast the arm is: its rate over the baseline's, or the baseline's time over its own."""
    return times_as_fast(ratio, FIGURES[figure].better)


def times_as_fast(ratio: float, better: Better | None) -> float:
    """The ratio of two values turned so that more is faster."""
    return 1 / ratio if better == "lower" else ratio


def told_as_fast(found: Comparison, figure: str) -> str:
    """`1.46 x as fast`."""
    return f"{format_factor(as_fast(found.ratio, figure))} x as fast"


def bounds_as_fast(found: Comparison, figure: str) -> str | None:
    """The interval of how many times as fast: `1.35 to 1.42`; None where there is none, or none that can be read."""
    return told_bounds(found, FIGURES[figure].better)


def edges_as_fast(found: Comparison, figure: str) -> tuple[float, float] | None:
    """The ends of the interval of how many times as fast, the lower first; None where there is none."""
    return bounds_in_times(found, FIGURES[figure].better)


def told_bounds(found: Comparison, better: Better | None) -> str | None:
    """`bounds_as_fast` of what has no name among the figures: a reading, which a program printed."""
    told = [format_factor(edge) for edge in bounds_in_times(found, better) or ()]
    return " to ".join(told) if len(set(told)) > 1 else None


def told_factor(found: Comparison, better: Better | None) -> str:
    """How many times as fast with its interval, for tables: `1.38 (1.35 to 1.42)`."""
    bounds = told_bounds(found, better)
    return f"{format_factor(times_as_fast(found.ratio, better))}{f' ({bounds})' if bounds else ''}"


def bounds_in_times(found: Comparison, better: Better | None) -> tuple[float, float] | None:
    """`edges_as_fast` of what has no name among the figures: a reading, which a program printed."""
    if not found.low or not found.high:
        return None
    first, second = (times_as_fast(edge, better) for edge in (found.low, found.high))
    return min(first, second), max(first, second)


def factor_range(factors: Sequence[float]) -> str:
    """`1.03 to 1.27 x as fast`, or the one factor where they read the same."""
    ends = list(dict.fromkeys(format_factor(end) for end in (min(factors), max(factors))))
    return f"{' to '.join(ends)} x as fast"


def verdict_word(found: Comparison) -> str:
    """The verdict where one is due; where none is, why not, in as few words: `3 of 6 pairs`, `same work`, `unclear`."""
    if found.verdict != "inconclusive":
        return found.verdict
    if found.is_same_work:
        return SAME_WORK
    if found.is_other_work:
        return OTHER_WORK
    return f"{found.pairs} of {NEEDED[found.unit]} {found.unit}" if found.n_missing else UNCLEAR


def missing_line(found: Iterable[Comparison]) -> str | None:
    """How much was measured of what a verdict needs: `3 of the 6 repetitions that it needs`.

    None where the number of pairs keeps no verdict away.
    """
    lacking = max((one for one in found if one.n_missing), key=lambda one: one.n_missing, default=None)
    if lacking is None:
        return None
    return f"{lacking.pairs} of the {NEEDED[lacking.unit]} {_COUNTED[lacking.unit]} that it needs"


def told_without_gain(words: Set[str]) -> str:
    """How an arm that is faster nowhere stands to the baseline, by the words of its verdicts: `Slower than`."""
    if words == {"slower"}:
        return "Slower than"
    return "As fast as" if words == {"no difference"} else "Not shown to be faster than"


def command_for_verdict(argv: Sequence[str], found: Iterable[Comparison], source: str = "hprof") -> str | None:
    """The run's own command with as many repetitions (or boots) as a verdict needs, into a folder of its own; of files
    of llama-bench, which are a process each, how as many are imported.

    None where no run made the capture, or nothing is missing.
    """
    lacking = next((one for one in found if one.n_missing), None)
    if lacking is not None and source == "llama-bench" and not is_run(argv):
        return f"{NEEDED['boots']} files an arm by one name, hprof import --arm off=1.jsonl --arm off=2.jsonl ..."
    if lacking is None or not is_run(argv):
        return None
    option = _OPTION[lacking.unit]
    kept = _without(_without(list(argv), _NAMES_OF[option]), _NAMES_OF["-o"])
    kept = [word for word in kept if word not in _OF_THE_FOLDER]
    return shlex.join([*kept, option, str(NEEDED[lacking.unit])])


def _without(argv: list[str], names: Sequence[str]) -> list[str]:
    """The words without an option that takes a value, in each of its spellings."""
    kept: list[str] = []
    is_value = False
    for word in argv:
        if is_value:
            is_value = False
        elif word in names:
            is_value = True
        elif not word.startswith(tuple(f"{name}=" for name in names)):
            kept.append(word)
    return kept
