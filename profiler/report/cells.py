"""Judges each cell: every arm's figures with intervals, and each arm against the baseline."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final, Literal

import numpy as np
import pandas as pd

from profiler.arithmetic.stats import Comparison, compare, estimate, paired
from profiler.manifest import Arm
from profiler.metrics import FIGURES, SCOPES, Scope
from profiler.report.data import ArmFigures, Cell
from profiler.report.placements import own_baselines
from profiler.report.sameness import PAIR_KEYS, Sameness, sameness

CELL_KEYS: Final = ["n_prompt", "n_gen", "n_ubatch", "n_depth"]
JUDGED: Final = ("ttft_ns", "prefill_tokens_per_s", "decode_tokens_per_s", "wall_ns")
AFTER_FIRST_TOKEN: Final = ("decode_tokens_per_s", "wall_ns")
Frames = dict[Scope, pd.DataFrame]


def judge_cells(
    passes: pd.DataFrame, frames: Frames, arms: Sequence[Arm], *, tokens_route: bool, noise: float
) -> list[Cell]:
    """Every cell that has measured passes, in the order of its keys.

    passes: the `passes` table; frames: `pass_figures` of it, in the same order; arms: the manifest's, whose order
    sets the baseline. tokens_route: other tokens mean other experts, so other work.
    """
    measured = passes[~passes["warmup"].fillna(False).astype(bool) & passes["arm"].notna()]
    judge = _Judge(frames, arms, tokens_route, noise)
    return [judge.cell(rows) for _, rows in measured.groupby(CELL_KEYS, dropna=False, sort=True)]


class _Judge:
    def __init__(self, frames: Frames, arms: Sequence[Arm], tokens_route: bool, noise: float) -> None:
        self._frames, self._tokens_route, self._noise = frames, tokens_route, noise
        self._order = {arm.name: position for position, arm in enumerate(arms)}
        self._on_host = {"cpu", *(arm.name for arm in arms if arm.requested == "cpu")}
        self._arms = arms
        self._host_layers = {arm.name: _host_layers(arm) for arm in arms}

    def cell(self, rows: pd.DataFrame) -> Cell:
        names = sorted(rows["arm"].unique(), key=lambda name: self._order.get(name, len(self._order)))
        by_arm = {name: rows[rows["arm"] == name] for name in names}
        in_part = {
            name: self._host_layers.get(name) for name, of_arm in by_arm.items() if self._computed_on_host(of_arm)
        }
        same = sameness(by_arm, self._on_host, in_part)
        baseline, *others = names
        own = own_baselines(self._arms, names)
        return Cell(
            **{key: _int(rows[key].iloc[0]) for key in CELL_KEYS},
            arms={name: self._figures(of_arm) for name, of_arm in by_arm.items()},
            against_baseline={
                name: self._comparisons(by_arm[baseline], by_arm[name], name in same.other_tokens) for name in others
            },
            same_tokens=same.same_tokens,
            bit_identical=same.bit_identical,
            notes=self._notes(same, baseline, in_part),
            own_baselines=own,
            against_own={name: self._against_own(by_arm[first], by_arm[name]) for name, first in own.items()},
        )

    def _figures(self, rows: pd.DataFrame) -> ArmFigures:
        picked = {scope: self._frames[scope].loc[rows["pass_id"]] for scope in SCOPES}
        figures = {
            scope: {name: estimate(frame[name].to_numpy()) for name in FIGURES} for scope, frame in picked.items()
        }
        return ArmFigures(figures, len(rows))

    def _comparisons(
        self, baseline: pd.DataFrame, arm: pd.DataFrame, has_other_tokens: bool
    ) -> dict[str, Comparison | None]:
        work = (
            "other tokens were generated, which use other experts" if has_other_tokens and self._tokens_route else None
        )
        return {
            name: compare(
                *paired(self._by_pair(baseline, name), self._by_pair(arm, name)),
                better=_better(name),
                noise=self._noise,
                different=work if name in AFTER_FIRST_TOKEN else None,
            )
            for name in JUDGED
        }

    def _against_own(self, first: pd.DataFrame, arm: pd.DataFrame) -> dict[str, Comparison | None]:
        same = sameness({"first": first, "arm": arm}, set(), {})
        return self._comparisons(first, arm, bool(same.other_tokens))

    def _by_pair(self, rows: pd.DataFrame, name: str) -> dict[tuple[float, ...], float]:
        keys = rows[PAIR_KEYS].fillna(-1).itertuples(index=False, name=None)
        return dict(zip(keys, self._frames["pass"][name].loc[rows["pass_id"]].tolist(), strict=True))

    def _computed_on_host(self, rows: pd.DataFrame) -> bool:
        return bool((self._frames["pass"]["host_compute_ns"].loc[rows["pass_id"]] > 0).any())

    def _notes(self, same: Sameness, baseline: str, in_part: Mapping[str, Hashable]) -> list[str]:
        notes = [
            f"{arm} generated other tokens than {baseline}{self._cause(arm, baseline, in_part)}."
            for arm in same.other_tokens
        ]
        if same.other_logits:
            names = ", ".join(same.other_logits)
            notes.append(
                f"The logits of {names} are not bit-identical to those of arms that compute in the same place: "
                "do not trust its times."
            )
        if same.apart:
            groups = "; ".join(", ".join(group) for group in same.apart)
            notes.append(f"Logits are compared among arms that compute in the same places: {groups}.")
        return notes

    def _cause(self, arm: str, baseline: str, in_part: Mapping[str, Hashable]) -> str:
        """Why an arm may generate other tokens than the baseline, in brackets; empty where nothing excuses it."""
        if arm in self._on_host:
            return " (it computes on the host, which rounds differently)"
        if (arm in in_part) != (baseline in in_part):
            return f" ({arm if arm in in_part else baseline} computes small ubatches on the host, the other does not)"
        if in_part.get(arm) != in_part.get(baseline):
            return " (other layers of it are computed on the host, which rounds differently)"
        return ""


def _host_layers(arm: Arm) -> Hashable:
    """The layers with weights in host memory, as the manifest says them; null where it does not."""
    placed = arm.options.get("effective")
    layers = placed.get("host_layers") if isinstance(placed, Mapping) else None
    return tuple(map(str, layers)) if isinstance(layers, list) else None


def _better(name: str) -> Literal["lower", "higher"]:
    return FIGURES[name].better or "lower"


def _int(value: float | None) -> int | None:
    return None if value is None or np.isnan(value) else int(value)
