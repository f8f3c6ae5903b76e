"""What arms have in common: whether they computed the same, by their tokens and the bits of their logits; and whether
two did the same work in a phase by design, so that a difference between their times is chance.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pandas as pd
import pyarrow as pa

from executor.passes import Phase
from profiler.manifest import ManifestArm
from profiler.metrics import Scope
from profiler.report.pairs import pair_keys

PHASES_OF: Final[dict[str, tuple[Phase, ...]]] = {
    "ttft_ns": ("prefill",),
    "prefill_tokens_per_s": ("prefill",),
    "decode_tokens_per_s": ("decode",),
    "wall_ns": ("prefill", "decode"),
}
_AS_MANY: Final = 0.01  # of the bytes: the same work copies the same ones


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


def _compare(values: Mapping[str, Mapping[tuple[object, ...], object]]) -> tuple[bool | None, list[str]]:
    if len(values) < 2:
        return None, []
    first, *others = values
    shared = {arm: values[first].keys() & values[arm].keys() for arm in others}
    if not any(shared.values()):
        return None, []
    differ = [arm for arm, keys in shared.items() if any(values[first][key] != values[arm][key] for key in keys)]
    return not differ, differ


class SameWork:
    """Knows by pass and phase which policy was in effect, and where the weights in host memory were computed.

    A gate that turns prefetch off, or ubatches below the offload threshold, leave two policies with one behaviour: they
    then use the weights in host memory alike, and no verdict is due.
    """

    def __init__(self, ubatches: pa.Table, frames: Mapping[Scope, pd.DataFrame], arms: Sequence[ManifestArm]) -> None:
        """ubatches: the table; frames: `pass_figures`."""
        rows = ubatches.select(["pass_id", "phase", "policy"]).to_pandas().dropna().drop_duplicates()
        self._policies: dict[tuple[int, str], tuple[str, ...]] = {}
        for pass_id, phase, policy in rows.itertuples(index=False, name=None):
            self._policies[pass_id, phase] = (*self._policies.get((pass_id, phase), ()), policy)
        self._on_host = {phase: _on_host(frames[phase]) for phase in ("prefill", "decode")}
        self._copied = {phase: frames[phase]["bytes_h2d"] for phase in ("prefill", "decode")}
        self._arms = {arm.name: arm for arm in arms}

    def reason(self, name: str, baseline: pd.DataFrame, arm: pd.DataFrame) -> str | None:
        """What the two shared in all phases that the figure covers; null where they may differ in any.

        baseline, arm: measured passes of one arm each. Arms of one policy under two names are there to be compared.
        """
        first, second = (self._arms.get(str(rows["arm"].iloc[0])) for rows in (baseline, arm))
        if first is None or second is None or first.requested == second.requested or not _placed_alike(first, second):
            return None
        phases = [phase for phase in PHASES_OF.get(name, ()) if not self._is_empty(phase, baseline)]
        shared = [self._shared(phase, baseline, arm) for phase in phases]
        return "; ".join(dict.fromkeys(map(str, shared))) if shared and None not in shared else None

    def _shared(self, phase: Phase, baseline: pd.DataFrame, arm: pd.DataFrame) -> str | None:
        policies = self._policy(phase, baseline)
        if policies is not None and policies == self._policy(phase, arm) and self._copied_alike(phase, baseline, arm):
            return f"{phase} ran as {policies} in both"
        if self._is_on_host(phase, baseline) and self._is_on_host(phase, arm):
            return f"{phase} computed the weights in host memory on the host in both"
        return None

    def _copied_alike(self, phase: Phase, baseline: pd.DataFrame, arm: pd.DataFrame) -> bool:
        """Whether both copied as many bytes in the phase, as far as it is known.

        Batches too large for the expert cache run as the policy below it, and copy only what the bank does not hold.
        """
        copied = self._copied[phase]
        medians = [float(copied.loc[rows["pass_id"]].median()) for rows in (baseline, arm)]
        if any(math.isnan(n_bytes) for n_bytes in medians):
            return True
        return abs(medians[0] - medians[1]) <= _AS_MANY * max(medians)

    def _is_empty(self, phase: Phase, rows: pd.DataFrame) -> bool:
        return not any((pass_id, phase) in self._policies for pass_id in rows["pass_id"])

    def _policy(self, phase: Phase, rows: pd.DataFrame) -> str | None:
        """The one policy that was in effect in every ubatch of every pass; null where there were several."""
        found = {tuple(self._policies.get((pass_id, phase), ())) for pass_id in rows["pass_id"]}
        names = {str(name) for of_pass in found for name in of_pass}
        return names.pop() if len(names) == 1 and () not in found else None

    def _is_on_host(self, phase: Phase, rows: pd.DataFrame) -> bool:
        return all(self._on_host[phase][pass_id] for pass_id in rows["pass_id"])


def _on_host(frame: pd.DataFrame) -> dict[int, bool]:
    """Which passes computed on the host in a phase and copied no weights: activations follow the work."""
    has_no_weights = (frame["bytes_h2d"] == 0) | frame["selective_saving_bytes"].isna()  # no copy names a tensor
    found = (frame["host_compute_ns"] > 0) & frame["bytes_h2d"].notna() & has_no_weights
    return dict(zip(found.index.tolist(), found.tolist(), strict=True))


def _placed_alike(first: ManifestArm, second: ManifestArm) -> bool:
    """Whether the manifest says that both kept the same layers in host memory."""
    is_alike = first.host_layers is not None and first.host_layers == second.host_layers
    return is_alike and not (first.is_resident or second.is_resident)
