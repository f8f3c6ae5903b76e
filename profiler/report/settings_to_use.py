"""What to set: the flags of the arm and ubatch that did best, for hprof and llama.cpp, and which arms llama.cpp has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from executor.units import listed
from profiler.manifest import ManifestArm
from profiler.report.cells import Cell


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


def told_settings(cell: Cell, best: str | None, arms: Sequence[ManifestArm], source: str, *, is_certain: bool) -> str:
    """A sentence each for hprof and llama.cpp, of the cell in which the best arm did best.

    best: None where no arm beats the baseline. is_certain: whether verdicts say so.
    """
    said = "Set" if is_certain else "Set, if it holds"
    policy = {arm.name: arm.requested or arm.name for arm in arms if arm.traits is not None}
    name = best or cell.baseline
    chosen = policy.get(name, name)
    words = [f"-ub {cell.n_ubatch}"] if cell.n_ubatch and cell.n_prompt != 0 else []  # decode alone has no ubatch
    why = ", for no arm was shown to beat it" if best is None and is_certain and len(cell.arms) > 1 else ""
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
