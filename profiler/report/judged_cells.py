"""Judges the cells of a capture: each arm's figures with intervals, whether the arms computed the same, and how each
compares with the baseline and with its own placement's first arm.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from executor.units import listed
from profiler.arithmetic.stats import Better, Comparison, CountUnit, Grounds, PairDesign, estimate
from profiler.manifest import Manifest
from profiler.metrics import FIGURES, JUDGED, SCOPES, CaptureTables, Scope, reading_columns, reading_figures
from profiler.metrics.passes import CellKey, by_cell
from profiler.report.cells import ArmFigures, Cell, arm_order, in_order, own_baselines
from profiler.report.measured import what_was_measured
from profiler.report.pairs import Repeats, judge, pair_keys
from profiler.report.sameness import Sameness, SameWork, sameness

AFTER_FIRST_TOKEN: Final = ("decode_tokens_per_s", "wall_ns")
OTHER_EXPERTS: Final = "other tokens were generated, which use other experts"
Frames = dict[Scope, pd.DataFrame]


def judge_cells(
    tables: CaptureTables, frames: Frames, manifest: Manifest, *, tokens_route: bool, noise: float
) -> list[Cell]:
    """Every cell that has measured passes, in the order of its keys.

    frames: `pass_figures` of the tables; manifest: its arms' order sets the baseline, and it says whether arms shared
    a process. tokens_route: other tokens mean other experts, so other work.
    """
    cells = _CellJudge(tables, frames, manifest, tokens_route, noise)
    return [cells.cell(key, rows) for key, rows in by_cell(tables.passes.to_pandas())]


@dataclass(frozen=True, slots=True)
class _ArmPasses:
    """One arm's passes in a cell: rows of the passes table, and of each judged figure its values by repetition."""

    rows: pd.DataFrame
    repeats: dict[str, Repeats]


class _CellJudge:
    def __init__(
        self, tables: CaptureTables, frames: Frames, manifest: Manifest, tokens_route: bool, noise: float
    ) -> None:
        self._frames, self._tokens_route, self._noise = frames, tokens_route, noise
        self._design = PairDesign(are_pairs=True, unit=_unit(manifest, is_routed=tables.experts.num_rows > 0))
        arms = manifest.arms
        self._same_work = SameWork(tables.ubatches, frames, arms)
        self._is_untimed = manifest.is_untimed
        self._order = arm_order(arms)
        self._on_host = {arm.name for arm in arms if arm.computes_on_host}
        self._arms = arms
        self._host_layers = {arm.name: arm.host_layers for arm in arms}
        self._readings = reading_figures(manifest)
        printed = pd.DataFrame(reading_columns(tables.passes, list(self._readings)), frames["pass"].index)
        self._of_pass = pd.concat([frames["pass"], printed], axis=1)
        self._columns = {scope: {name: frames[scope][name].to_numpy() for name in FIGURES} for scope in SCOPES}
        self._judged = [*JUDGED, *(name for name, figure in self._readings.items() if figure.better is not None)]

    def cell(self, key: CellKey, rows: pd.DataFrame) -> Cell:
        names = in_order(rows, self._order)
        by_arm = {name: rows[rows["arm"] == name] for name in names}
        in_part = {
            name: self._host_layers.get(name) for name, of_arm in by_arm.items() if self._computed_on_host(of_arm)
        }
        same = sameness(by_arm, self._on_host, in_part)
        baseline, *others = names
        causes = {arm: self._cause(arm, baseline, in_part) for arm in same.other_tokens}
        own = own_baselines(self._arms, names)
        passes = {name: _ArmPasses(of_arm, self._repeats(of_arm)) for name, of_arm in by_arm.items()}
        return Cell(
            *key.sizes,
            arms={name: self._figures(of_arm) for name, of_arm in by_arm.items()},
            against_baseline={
                name: self._comparisons(passes[baseline], passes[name], name in same.other_tokens) for name in others
            },
            same_tokens=same.same_tokens,
            bit_identical=same.bit_identical,
            notes=self._notes(same, baseline, causes),
            faults=_faults(same, baseline, [arm for arm, cause in causes.items() if not cause]),
            own_baselines=own,
            against_own={name: self._against_own(passes[first], passes[name]) for name, first in own.items()},
            readings=self._readings,
            n_not_positive=self._not_positive(rows),
        )

    def _not_positive(self, rows: pd.DataFrame) -> dict[str, int]:
        """How many passes have a judged figure of 0 or less, of which no ratio can be made."""
        counts = (self._of_pass.loc[rows["pass_id"], self._judged] <= 0).sum()
        return {str(name): int(count) for name, count in counts.items() if count}

    def _figures(self, rows: pd.DataFrame) -> ArmFigures:
        places = self._of_pass.index.get_indexer(pd.Index(rows["pass_id"]))  # the same in the frames of all scopes
        boots, unit = rows["boot"].fillna(-1).to_numpy(np.float64), self._design.unit
        figures = {
            scope: {name: estimate(values[places], boots, unit) for name, values in columns.items()}
            for scope, columns in self._columns.items()
        }
        printed = {name: self._of_pass[name].to_numpy()[places] for name in self._readings}
        figures["pass"] |= {name: estimate(values, boots, unit) for name, values in printed.items()}
        whole = {name: values[places] for name, values in self._columns["pass"].items()}
        copying = (whole["bytes_h2d"] > 0) | (whole["busy_copy_ns"] > 0)
        busy_ns, hidden_ns = (np.nansum(whole[name]) for name in ("busy_copy_ns", "hidden_copy_ns"))
        return ArmFigures(
            figures,
            len(rows),
            n_copying=int(copying.sum()),
            hidden_of_all=float(hidden_ns / busy_ns) if busy_ns else None,
        )

    def _comparisons(
        self, baseline: _ArmPasses, arm: _ArmPasses, has_other_tokens: bool
    ) -> dict[str, Comparison | None]:
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
                    same=self._same_work.reason(name, baseline.rows, arm.rows),
                ),
            )
            for name in self._judged
        }

    def _against_own(self, first: _ArmPasses, arm: _ArmPasses) -> dict[str, Comparison | None]:
        same = sameness({"first": first.rows, "arm": arm.rows}, set(), {})
        return self._comparisons(first, arm, bool(same.other_tokens))

    def _repeats(self, rows: pd.DataFrame) -> dict[str, Repeats]:
        """Of each judged figure, the passes' values by boot and repetition."""
        keys, places = pair_keys(rows), self._of_pass.index.get_indexer(pd.Index(rows["pass_id"]))
        return {
            name: dict(zip(keys, self._of_pass[name].to_numpy()[places].tolist(), strict=True)) for name in self._judged
        }

    def _better(self, name: str) -> Better:
        return (FIGURES.get(name) or self._readings[name]).better or "lower"

    def _computed_on_host(self, rows: pd.DataFrame) -> bool:
        return bool((self._frames["pass"]["host_compute_ns"].loc[rows["pass_id"]] > 0).any())

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


def _unit(manifest: Manifest, *, is_routed: bool) -> CountUnit:
    """What counts as one measurement of an arm."""
    if what_was_measured(manifest).is_exact:
        return "routings" if is_routed else "results"
    return "boots" if manifest.has_process_per_arm else "pairs"
