"""A cell of a report: the arms that ran one (n_prompt, n_gen, n_ubatch, n_depth), their figures with intervals,
whether they computed the same, and how each compares with the baseline and with its own placement's first arm.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import numpy as np
import pandas as pd

from profiler.arithmetic.stats import Comparison, Estimate, estimate
from profiler.manifest import Manifest, ManifestArm
from profiler.metrics import FIGURES, SCOPES, CaptureTables, Scope
from profiler.metrics.passes import CellKey, by_cell
from profiler.report.pairs import Grounds, PairDesign, Repeats, judge, pair_keys, repeats
from profiler.report.same_work import SameWork

_SUFFIX: Final = re.compile(r"@(\d+)$")


def placement_number(arm: ManifestArm) -> int:
    """Which of the run's placements an arm was measured under: 2 for `on@2`, 1 for `on` and for other tools' arms."""
    found = _SUFFIX.search(arm.name) if "placement" in arm.options else None
    return int(found[1]) if found else 1


def own_baselines(arms: Sequence[ManifestArm], names: Sequence[str]) -> dict[str, str]:
    """The first arm of its own placement, by arm: for those of another placement than the cell's baseline.

    names: the cell's arms, the baseline first. One that is resident by design is no arm of any placement.
    """
    by_name = {arm.name: arm for arm in arms}
    number = {name: placement_number(by_name[name]) for name in names if name in by_name}
    first: dict[int, str] = {}
    own = {}
    for name, placed in number.items():
        if not by_name[name].is_resident and first.setdefault(placed, name) not in (name, names[0]):
            own[name] = first[placed]
    return own


Figures = dict[str, Estimate | None]  # by the names in profiler.metrics.FIGURES; null: the source cannot give it


@dataclass(frozen=True, slots=True)
class DeviceMedians:
    """One device's part of an arm's passes: medians over the measured ones."""

    device: int
    bytes_h2d: float | None
    busy_copy_ns: float  # host to device
    hidden_copy_ns: float
    busy_compute_ns: float
    vram_held_bytes: int | None  # weights, slots and bank; None: the capture does not say it by device

    @property
    def hidden_ratio(self) -> float | None:
        """Hidden / busy copy; None where nothing took time."""
        return self.hidden_copy_ns / self.busy_copy_ns if self.busy_copy_ns else None


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm in one cell: its figures over the whole pass and over each phase."""

    figures: dict[Scope, Figures]
    n_passes: int  # measured; warm-ups are left out
    by_device: tuple[DeviceMedians, ...] = ()  # where passes ran on several devices

    def median(self, name: str, scope: Scope = "pass") -> float | None:
        """One figure's median; null where the source cannot give it."""
        found = self.figures[scope][name]
        return found.median if found is not None else None


@dataclass(frozen=True, slots=True)
class Cell(CellKey):
    """One (n_prompt, n_gen, n_ubatch, n_depth) and the arms that ran it side by side."""

    arms: dict[str, ArmFigures]  # the baseline first
    against_baseline: dict[str, dict[str, Comparison | None]]
    same_tokens: bool | None  # null: one arm alone, or no tokens were recorded
    bit_identical: bool | None  # over the arms that compute on the device
    notes: list[str] = field(default_factory=list)  # what differs, and why that is (not) a fault
    own_baselines: dict[str, str] = field(default_factory=dict)  # arms of further placements: the first arm there
    against_own: dict[str, dict[str, Comparison | None]] = field(default_factory=dict)  # those arms against it

    @property
    def baseline(self) -> str:
        """The arm that the others are held against."""
        return next(iter(self.arms))

    def held_against(self, name: str) -> tuple[str, dict[str, Comparison | None]]:
        """What an arm is best compared with, and how it compares: its own placement's first arm, else the baseline."""
        if name in self.own_baselines:
            return self.own_baselines[name], self.against_own[name]
        return self.baseline, self.against_baseline.get(name, {})


@dataclass(frozen=True, slots=True)
class Sameness:
    """Null: one arm alone, or nothing to compare was recorded. The names are of arms that differ from the first."""

    same_tokens: bool | None
    bit_identical: bool | None
    other_tokens: list[str] = field(default_factory=list)
    other_logits: list[str] = field(default_factory=list)
    apart: list[list[str]] = field(default_factory=list)  # groups of arms with logits that are not compared with others


def sameness(passes: Mapping[str, pd.DataFrame], on_host: set[str], in_part: Mapping[str, Hashable]) -> Sameness:
    """Compare each arm's passes with the first arm's of the same boot and repetition, which had the same input.

    passes: rows of the `passes` table by arm, the baseline first. on_host: arms that compute on the host; they
    round differently, so their logits are left out. in_part: arms that did so for some ubatches, such as decode
    below the offload threshold, each with what it computes there; the logits of those with the same are compared with
    one another's, and the other arms' likewise.
    """
    tokens = {arm: _by_pair(rows, "tokens", tuple) for arm, rows in passes.items()}
    same_tokens, other_tokens = _compare(tokens)
    digests = {arm: found for arm, rows in passes.items() if (found := _by_pair(rows, "logits_digest", str))}
    groups = _groups([arm for arm in digests if arm not in on_host], in_part)
    compared = [_compare({arm: digests[arm] for arm in group}) for group in groups]
    verdicts = [same for same, _ in compared if same is not None]
    apart = [*groups, [arm for arm in digests if arm in on_host]]
    apart = [group for group in apart if group]
    return Sameness(
        same_tokens,
        all(verdicts) if verdicts else None,
        other_tokens,
        [arm for _, other in compared for arm in other],
        apart if len(apart) > 1 else [],
    )


def _groups(arms: Iterable[str], in_part: Mapping[str, Hashable]) -> list[list[str]]:
    """The arms that compute in the same places: those with the same part on the host, then those with none."""
    groups: dict[Hashable, list[str]] = {}
    for arm in sorted(arms, key=lambda arm: arm not in in_part):
        groups.setdefault((arm in in_part, in_part.get(arm)), []).append(arm)
    return list(groups.values())


def _by_pair(rows: pd.DataFrame, column: str, kind: Any) -> dict[tuple[Any, ...], Any]:
    """The column's values by (boot, repetition), without nulls and empty lists."""
    found = zip(pair_keys(rows), rows[column], strict=True)
    return {key: kind(value) for key, value in found if _is_told(value)}


def _is_told(value: Any) -> bool:
    return len(value) > 0 if hasattr(value, "__len__") else bool(pd.notna(value))


def _compare(values: Mapping[str, Mapping[tuple[Any, ...], Any]]) -> tuple[bool | None, list[str]]:
    if len(values) < 2:
        return None, []
    first, *others = values
    shared = {arm: values[first].keys() & values[arm].keys() for arm in others}
    if not any(shared.values()):
        return None, []
    differ = [arm for arm, keys in shared.items() if any(values[first][key] != values[arm][key] for key in keys)]
    return not differ, differ


JUDGED: Final = ("ttft_ns", "prefill_tokens_per_s", "decode_tokens_per_s", "wall_ns")
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


class _CellJudge:
    def __init__(
        self, tables: CaptureTables, frames: Frames, manifest: Manifest, tokens_route: bool, noise: float
    ) -> None:
        self._frames, self._tokens_route, self._noise = frames, tokens_route, noise
        self._design = PairDesign(are_pairs=True, unit="boots" if manifest.has_process_per_arm else "pairs")
        arms = manifest.arms
        self._same_work = SameWork(tables.ubatches, frames, arms)
        self._order = _order(arms)
        self._on_host = {arm.name for arm in arms if arm.computes_on_host}
        self._arms = arms
        self._host_layers = {arm.name: _host_layers(arm) for arm in arms}

    def cell(self, key: CellKey, rows: pd.DataFrame) -> Cell:
        names = _in_order(rows, self._order)
        by_arm = {name: rows[rows["arm"] == name] for name in names}
        in_part = {
            name: self._host_layers.get(name) for name, of_arm in by_arm.items() if self._computed_on_host(of_arm)
        }
        same = sameness(by_arm, self._on_host, in_part)
        baseline, *others = names
        own = own_baselines(self._arms, names)
        return Cell(
            *key.sizes,
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
        boots = rows["boot"].fillna(-1).to_numpy(np.float64) if self._design.unit == "boots" else None
        figures = {
            scope: {name: estimate(frame[name].to_numpy(), boots) for name in FIGURES}
            for scope, frame in picked.items()
        }
        return ArmFigures(figures, len(rows))

    def _comparisons(
        self, baseline: pd.DataFrame, arm: pd.DataFrame, has_other_tokens: bool
    ) -> dict[str, Comparison | None]:
        is_other = has_other_tokens and self._tokens_route
        return {
            name: judge(
                self._repeats(baseline, name),
                self._repeats(arm, name),
                self._design,
                better=_better(name),
                noise=self._noise,
                grounds=Grounds(
                    different=OTHER_EXPERTS if is_other and name in AFTER_FIRST_TOKEN else None,
                    same=self._same_work.reason(name, baseline, arm),
                ),
            )
            for name in JUDGED
        }

    def _against_own(self, first: pd.DataFrame, arm: pd.DataFrame) -> dict[str, Comparison | None]:
        same = sameness({"first": first, "arm": arm}, set(), {})
        return self._comparisons(first, arm, bool(same.other_tokens))

    def _repeats(self, rows: pd.DataFrame, name: str) -> Repeats:
        return repeats(rows, self._frames["pass"][name].loc[rows["pass_id"]].to_numpy())

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


def _host_layers(arm: ManifestArm) -> Hashable:
    """The layers with weights in host memory, as the manifest says them; null where it does not."""
    placed = arm.options.get("effective")
    layers = placed.get("host_layers") if isinstance(placed, Mapping) else None
    return tuple(map(str, layers)) if isinstance(layers, list) else None


def _better(name: str) -> Literal["lower", "higher"]:
    return FIGURES[name].better or "lower"


def _int(value: float | None) -> int | None:
    return None if value is None or np.isnan(value) else int(value)


@dataclass(frozen=True, slots=True)
class CellSizes(CellKey):
    """What a cell asked of the model, and the arms that ran it: the report's cells without their figures."""

    arms: tuple[str, ...]


def cell_sizes(passes: pd.DataFrame, arms: Sequence[ManifestArm]) -> list[CellSizes]:
    """Every cell with measured passes, in the order of the report's."""
    order = _order(arms)
    return [CellSizes(*key.sizes, arms=tuple(_in_order(rows, order))) for key, rows in by_cell(passes)]


AnyCell = TypeVar("AnyCell", Cell, CellSizes)


def telling_cell(cells: Sequence[AnyCell]) -> AnyCell:
    """The cell to speak about: most arms compared, then most tokens."""
    return max(cells, key=lambda cell: (len(cell.arms), cell.n_prompt or 0, cell.n_ubatch or 0))


def _order(arms: Sequence[ManifestArm]) -> dict[str, int]:
    return {arm.name: position for position, arm in enumerate(arms)}


def _in_order(rows: pd.DataFrame, order: Mapping[str, int]) -> list[str]:
    """The arms of these passes, as the manifest lists them; the ones it does not know last."""
    return sorted(rows["arm"].unique(), key=lambda name: order.get(name, len(order)))
