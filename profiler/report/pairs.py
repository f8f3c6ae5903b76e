"""How the passes of two arms become pairs, and what a pair is.

Arms of hprof's own engine take turns inside one process, so two passes of one repetition are a pair; with `--boots`
the processes are drawn first and their pairs inside them. Arms that ran in processes of their own (llama-bench, one
trace an arm) differ by what sets those processes apart, however often each repeats: there a process counts once, as
the median of its repetitions, and two processes of one number are a pair.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import pandas as pd

from executor.arrays import Floats
from profiler.arithmetic.chances import TwoSides
from profiler.arithmetic.stats import (
    NO_GROUNDS,
    Better,
    Comparison,
    CountUnit,
    Grounds,
    PairDesign,
    boot_medians,
    compare,
    is_usable,
    shared_keys,
)
from profiler.manifest import Manifest
from profiler.report.measured import what_was_measured

PAIR_KEYS: Final = ["boot", "repetition"]
_NEXT_COUNT: Final = float(1 << 32)  # beyond any repetition's number
Repeats = dict[tuple[float, float], float]  # (boot, repetition) -> value; -1 where the source does not say


def pair_keys(rows: pd.DataFrame) -> list[tuple[float, float]]:
    """(boot, repetition) of each row of one arm and cell of the `passes` table, in the order of the run; no two alike.

    Where a source counts anew, as a trace of several runs does, or counts nothing, the n-th pass of a number is a
    repetition of its own beside the other arm's n-th.
    """
    return in_pairs(*(rows[key].fillna(-1).to_numpy(np.float64) for key in PAIR_KEYS))


def in_pairs(boots: Floats, repetitions: Floats) -> list[tuple[float, float]]:
    """The same of the passes' boots and repetitions; -1 where the source does not say."""
    seen: Counter[tuple[float, float]] = Counter()
    found = []
    for boot, repetition in zip(boots.tolist(), repetitions.tolist(), strict=True):
        found.append((boot, repetition + _NEXT_COUNT * seen[boot, repetition]))
        seen[boot, repetition] += 1
    return found


def count_unit(manifest: Manifest, *, is_routed: bool) -> CountUnit:
    """What counts as one measurement of an arm."""
    if what_was_measured(manifest).is_exact:
        return "routings" if is_routed else "results"
    return "boots" if manifest.has_process_per_arm else "pairs"


def repeats(rows: pd.DataFrame, values: Floats) -> Repeats:
    """The values of these passes by boot and repetition."""
    return dict(zip(pair_keys(rows), values.tolist(), strict=True))


def counted(found: Repeats, unit: CountUnit) -> Repeats:
    """One value a unit: the values themselves, or each boot's median under repetition 0."""
    if unit != "boots" or not found:
        return found
    boots, medians = boot_medians(np.array(list(found.values())), np.array([boot for boot, _ in found]))
    return {(boot, 0.0): value for boot, value in zip(boots.tolist(), medians.tolist(), strict=True)}


def judge(
    baseline: Repeats,
    arm: Repeats,
    design: PairDesign,
    *,
    better: Better,
    noise: float,
    grounds: Grounds = NO_GROUNDS,
    with_zeros: bool = False,
) -> Comparison | None:
    """Hold an arm against the baseline; null where they share no usable value.

    with_zeros: 0 is a value like any other, as of exposed copies, and no time that nobody took.
    """
    of_baseline, of_arm = _values(baseline, arm, design, with_zeros=with_zeros)
    boots = of_baseline[1], of_arm[1]
    return compare(of_baseline[0], of_arm[0], better=better, noise=noise, design=design, boots=boots, grounds=grounds)


def samples(baseline: Repeats, arm: Repeats, design: PairDesign) -> TwoSides:
    """The independent measurements of both, values of 0 too: of several processes each one's median."""
    of_baseline, of_arm = _values(baseline, arm, design, with_zeros=True)
    return TwoSides(_one_a_process(*of_baseline), _one_a_process(*of_arm), design.are_pairs)


def _one_a_process(values: Floats, boots: Floats) -> Floats:
    return boot_medians(values, boots)[1] if len(np.unique(boots)) > 1 else values


def _values(
    baseline: Repeats, arm: Repeats, design: PairDesign, *, with_zeros: bool
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Of each side the values that count, and their boots; of pairs in the same order."""
    sides = [
        counted({key: v for key, v in found.items() if is_usable(v, with_zeros=with_zeros)}, design.unit)
        for found in (baseline, arm)
    ]
    keys = [shared_keys(*sides, with_zeros=with_zeros)] * 2 if design.are_pairs else [list(side) for side in sides]
    of_baseline, of_arm = (
        (np.array([side[key] for key in chosen]), np.array([boot for boot, _ in chosen]))
        for side, chosen in zip(sides, keys, strict=True)
    )
    return of_baseline, of_arm
