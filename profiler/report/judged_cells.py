"""Judges the cells of a capture: whether the arms computed the same, and how each compares with the baseline and with
its own placement's first arm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

from executor.units import listed
from profiler.arithmetic.stats import Better, Comparison, Grounds, PairDesign
from profiler.manifest import Manifest
from profiler.metrics import FIGURES, reading_figures
from profiler.metrics.passes import CellKey
from profiler.report.arm_passes import ArmPasses, CellArms
from profiler.report.cells import Cell, arm_order, in_order, own_baselines
from profiler.report.pairs import count_unit, judge
from profiler.report.sameness import Sameness, same_work, sameness

AFTER_FIRST_TOKEN: Final = ("decode_tokens_per_s", "wall_ns")
OTHER_EXPERTS: Final = "other tokens were generated, which use other experts"


def judge_cells(
    cells: CellArms, manifest: Manifest, *, is_routed: bool, tokens_route: bool, noise: float
) -> list[Cell]:
    """Every cell, in the order of its key.

    manifest: its arms' order sets the baseline, and it says whether arms shared a process. is_routed: experts were
    chosen. tokens_route: other tokens mean other experts, so other work.
    """
    design = PairDesign(are_pairs=True, unit=count_unit(manifest, is_routed=is_routed))
    cell_judge = _CellJudge(manifest, design, tokens_route, noise)
    return [cell_judge.cell(key, arms) for key, arms in cells.items()]


class _CellJudge:
    def __init__(self, manifest: Manifest, design: PairDesign, tokens_route: bool, noise: float) -> None:
        self._design, self._tokens_route, self._noise = design, tokens_route, noise
        self._is_untimed = manifest.is_untimed
        self._arms = manifest.arms
        self._host_layers = {arm.name: arm.host_layers for arm in manifest.arms}
        self._order = arm_order(manifest.arms)
        self._on_host = {arm.name for arm in manifest.arms if arm.computes_on_host}
        self._readings = reading_figures(manifest)

    def cell(self, key: CellKey, arms: Mapping[str, ArmPasses]) -> Cell:
        names = in_order(arms, self._order)
        arms = {name: arms[name] for name in names}
        in_part = {name: self._host_layers.get(name) for name, passes in arms.items() if passes.computed_on_host}
        same = sameness({name: passes.told for name, passes in arms.items()}, self._on_host, in_part)
        baseline, *others = names
        causes = {arm: self._cause(arm, baseline, in_part) for arm in same.other_tokens}
        own = own_baselines(self._arms, names)
        return Cell(
            *key.sizes,
            arms={name: passes.figures for name, passes in arms.items()},
            against_baseline={
                name: self._comparisons(arms[baseline], arms[name], name in same.other_tokens) for name in others
            },
            same_tokens=same.same_tokens,
            bit_identical=same.bit_identical,
            notes=self._notes(same, baseline, causes),
            faults=_faults(same, baseline, [arm for arm, cause in causes.items() if not cause]),
            own_baselines=own,
            against_own={name: self._against_own(arms[first], arms[name]) for name, first in own.items()},
            readings=self._readings,
            n_not_positive=_not_positive(arms.values()),
        )

    def _comparisons(self, baseline: ArmPasses, arm: ArmPasses, has_other_tokens: bool) -> dict[str, Comparison | None]:
        if self._is_untimed:
            return {}
        is_other = has_other_tokens and self._tokens_route
        return {
            name: judge(
                baseline.repeats[name],
                arm.repeats[name],
                self._design,
                better=self._better(name),
                noise=self._noise,
                grounds=Grounds(
                    different=OTHER_EXPERTS if is_other and name in AFTER_FIRST_TOKEN else None,
                    same=same_work(name, baseline.work, arm.work),
                ),
            )
            for name in baseline.repeats
        }

    def _against_own(self, first: ArmPasses, arm: ArmPasses) -> dict[str, Comparison | None]:
        same = sameness({"first": first.told, "arm": arm.told}, set(), {})
        return self._comparisons(first, arm, bool(same.other_tokens))

    def _better(self, name: str) -> Better:
        return (FIGURES.get(name) or self._readings[name]).better or "lower"

    def _notes(self, same: Sameness, baseline: str, causes: Mapping[str, str]) -> list[str]:
        """causes: why an arm may have generated other tokens, by arm."""
        arms_of: dict[str, list[str]] = {}
        for arm, cause in causes.items():
            arms_of.setdefault(cause, []).append(arm)
        notes = [
            f"{listed(arms)} generated other tokens than {baseline} ({cause})."
            for cause, arms in arms_of.items()
            if cause
        ]
        if same.apart:
            groups = "; ".join(", ".join(group) for group in same.apart)
            notes.append(f"Logits are compared among arms that compute in the same places: {groups}.")
        return notes

    def _cause(self, arm: str, baseline: str, in_part: Mapping[str, Hashable]) -> str:
        """Why an arm may generate other tokens than the baseline; empty where nothing excuses it."""
        for one in (baseline, arm):
            if one in self._on_host:
                return f"{one} computes on the host, which rounds differently"
        if (arm in in_part) != (baseline in in_part):
            return f"{arm if arm in in_part else baseline} computes small ubatches on the host, the other does not"
        if in_part.get(arm) != in_part.get(baseline):
            return "they compute different layers on the host, which rounds differently"
        return ""


def _faults(same: Sameness, baseline: str, unexcused: Sequence[str]) -> list[str]:
    """What arms that compute in the same places did differently.

    unexcused: the arms with other tokens than the baseline's, and nothing that lets them.
    """
    faults = []
    if unexcused:
        faults.append(f"TOKENS DIFFER: {listed(unexcused)} and {baseline} compute in the same places.")
    if same.other_logits:
        names = listed(same.other_logits)
        faults.append(f"LOGITS DIFFER: {names} and arms that compute in the same places are not bit-identical.")
    return [*faults, "Trust no time of arms that differ so."] if faults else []


def _not_positive(arms: Iterable[ArmPasses]) -> dict[str, int]:
    """How many passes have a judged figure of 0 or less, of which no ratio can be made."""
    counts: Counter[str] = Counter()
    for passes in arms:
        counts.update({name: int((values <= 0).sum()) for name, values in passes.values.items()})
    return {name: count for name, count in counts.items() if count}
