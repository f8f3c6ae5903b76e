"""What to set: which arm and ubatch did best, its flags for hprof and llama.cpp, and which arms llama.cpp has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from executor.units import listed
from profiler.manifest import ManifestArm
from profiler.metrics import FIGURES
from profiler.report.cells import Cell, telling_cell
from profiler.report.phases import DECODE_RATE, PHASES, told_phase, told_slower
from profiler.report.shown_cells import printed_figure, telling_figure, told_comparison
from profiler.report.verdicts import times_as_fast


@dataclass(frozen=True, slots=True)
class InLlamaCpp:
    """How llama.cpp is told to do what an arm does."""

    flags: str
    builds: str  # those that can


# as of November 2026: pull request 21067 is open, 29887 was merged in October
_LLAMA_CPP: Final[Mapping[str, InLlamaCpp]] = {
    "off": InLlamaCpp("", "its default"),
    "on": InLlamaCpp("-pw 1", "pull request 21067, in no release"),
    "cache": InLlamaCpp("--moe-cache-mib N", "builds since October 2026"),
    "cpu": InLlamaCpp("-nopo 1 in llama-bench, --no-op-offload in llama-server", "every build"),
    "full": InLlamaCpp("-ngl 99 without -ncmoe and -ot", "every build"),
}


@dataclass(frozen=True, slots=True)
class Standings:
    """How arms stand against the baseline in the figure that tells the cells' story; each list by speed."""

    baseline: str
    paying: Sequence[str]  # faster in some cell
    unsettled: Sequence[str]  # with too few pairs for a verdict
    decoding: Sequence[str]  # faster in decode, and no slower in what tells the story


def told_choice(cells: Sequence[Cell], found: Standings, arms: Sequence[ManifestArm], source: str) -> str:
    """The sentence on the fastest arm and ubatch of the telling workload, among arms that pay there (or, without any
    verdict yet, those that lack one); where programs printed a figure of themselves, by that one, as the answer is.
    Where prefill and decode were timed, it says by which of them, and whether the arm is slower in the other.
    """
    telling = telling_cell(cells)
    if (printed := _best_as_printed(telling)) is not None:
        return _told_settings(telling, printed, arms, source)
    alike = [cell for cell in cells if replace(cell.key, n_ubatch=None) == replace(telling.key, n_ubatch=None)]
    speeds = {
        (at, name): _speed(cell, name)
        for at, cell in enumerate(alike)
        for name in (found.baseline, *(found.paying or found.unsettled))
        if name == found.baseline or not found.paying or pays_in(cell, name)
    }
    at, name = max(speeds, key=lambda key: speeds[key])
    by = told_phase(cells)
    if name == found.baseline and found.decoding:
        name, by = found.decoding[0], PHASES[DECODE_RATE]
    best = _Best(
        name if name != found.baseline else None,
        is_certain=bool(found.paying) or not found.unsettled,
        by=by,
        but=told_slower(cells, alike[at], name, by) if by is not None else None,
    )
    return _told_settings(alike[at], best, arms, source)


def pays_in(cell: Cell, name: str) -> bool:
    """Whether the arm was found faster than the baseline in this very cell."""
    told = told_comparison(cell, name)
    return told is not None and told[0].verdict == "faster"


@dataclass(frozen=True, slots=True)
class _Best:
    name: str | None  # None where no arm beats the baseline
    is_certain: bool  # whether verdicts say so
    by: str | None = None  # the figure that it was chosen by, where that is no matter of course
    but: str | None = None  # what the choice costs in another figure


def _best_as_printed(cell: Cell) -> _Best | None:
    """By what the programs printed themselves, where the answer leads with that; None where it does not."""
    if (key := printed_figure(cell)) is None:
        return None
    figure = cell.readings[key]
    compared = {name: found for name, of in cell.against_baseline.items() if (found := of.get(key)) is not None}
    factors = {name: times_as_fast(found.ratio, figure.better) for name, found in compared.items()}
    if faster := [name for name, found in compared.items() if found.verdict == "faster"]:
        return _Best(max(faster, key=lambda name: factors[name]), True, figure.label)
    unsettled = [name for name, found in compared.items() if found.n_missing and factors[name] > 1]
    best = max(unsettled, key=lambda name: factors[name], default=None)
    return _Best(best, not any(found.n_missing for found in compared.values()), figure.label)


def _speed(cell: Cell, name: str) -> float:
    """The arm's telling figure, so that more is faster; least where it has none."""
    figure = telling_figure(cell)
    median = cell.arms[name].median(figure) if figure is not None and name in cell.arms else None
    if median is None or figure is None:
        return -math.inf
    return -median if FIGURES[figure].better == "lower" else median


def _told_settings(cell: Cell, best: _Best, arms: Sequence[ManifestArm], source: str) -> str:
    """A sentence each for hprof and llama.cpp, of the cell in which the best arm did best."""
    said = "Set" if best.is_certain else "Set, if it holds"
    policy = {arm.name: arm.requested or arm.name for arm in arms if arm.traits is not None}
    name = best.name or cell.baseline
    chosen = policy.get(name, name)
    words = [f"-ub {cell.n_ubatch}"] if cell.n_ubatch and cell.n_prompt != 0 else []  # decode alone has no ubatch
    but = f" ({best.but})" if best.but else ""
    why = f", by {best.by}{but}" if best.by else ""
    if best.name is None and best.is_certain and len(cell.arms) > 1:
        why = f", for no arm was shown to beat it{f' in {best.by}' if best.by else ''}"
    if source != "hprof":
        return f"{said}: {' '.join([name, *words])}{why}."
    set_here = f"{said}: {' '.join([f'--arms {chosen}', *words])}{why}."
    if chosen in _LLAMA_CPP:
        known = _LLAMA_CPP[chosen]
        flags = " ".join([*words, *([known.flags] if known.flags else [])]) or "no flag"
        return f"{set_here} llama.cpp: {flags} ({known.builds})."
    has = dict.fromkeys(policy[arm] for arm in cell.arms if arm in policy and not _is_resident(arm, arms))
    told = [_told(arm) for arm in has if arm in _LLAMA_CPP]
    of_them = f"; of these arms it has {listed(told)}" if told else ""
    return f"{set_here} llama.cpp has no {chosen}{of_them}."


def _is_resident(name: str, arms: Sequence[ManifestArm]) -> bool:
    return any(arm.name == name and arm.is_resident for arm in arms)


def _told(policy: str) -> str:
    known = _LLAMA_CPP[policy]
    return f"{policy} ({', '.join(part for part in (known.flags, known.builds) if part)})"
