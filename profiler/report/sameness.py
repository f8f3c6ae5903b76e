"""What arms have in common: whether they computed the same, by their tokens and the bits of their logits; and whether
two did the same work in a phase by design, so that a difference between their times is chance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pandas as pd
import pyarrow as pa

from executor.passes import Phase
from profiler.manifest import ManifestArm
from profiler.metrics import Scope

PHASES_OF: Final[dict[str, tuple[Phase, ...]]] = {
    "ttft_ns": ("prefill",),
    "prefill_tokens_per_s": ("prefill",),
    "decode_tokens_per_s": ("decode",),
    "wall_ns": ("prefill", "decode"),
}
_PHASES: Final[tuple[Phase, ...]] = ("prefill", "decode")
_AS_MANY: Final = 0.01  # of the bytes: the same work copies the same ones


@dataclass(frozen=True, slots=True)
class Sameness:
    """Null: one arm alone, or nothing to compare was recorded. The names are of arms that differ from the first."""

    same_tokens: bool | None
    bit_identical: bool | None
    other_tokens: list[str] = field(default_factory=list)
    other_logits: list[str] = field(default_factory=list)
    apart: list[list[str]] = field(default_factory=list)  # groups of arms with logits that are not compared with others


@dataclass(frozen=True, slots=True)
class ToldByPasses:
    """What an arm's passes gave, by (boot, repetition); those that tell nothing are left out."""

    tokens: Mapping[tuple[float, float], tuple[int, ...]]
    digests: Mapping[tuple[float, float], str]

    @classmethod
    def of(
        cls, keys: Sequence[tuple[float, float]], tokens: Iterable[Sequence[int] | None], digests: Iterable[str | None]
    ) -> ToldByPasses:
        """Of passes, each with its key, its tokens and the digest of its logits."""
        return cls(
            {key: tuple(of_pass) for key, of_pass in zip(keys, tokens, strict=True) if of_pass},
            {key: digest for key, digest in zip(keys, digests, strict=True) if digest},
        )


def sameness(passes: Mapping[str, ToldByPasses], on_host: set[str], in_part: Mapping[str, Hashable]) -> Sameness:
    """Compare each arm's passes with the first arm's of the same boot and repetition, which had the same input.

    passes: by arm, the baseline first. on_host: arms that compute on the host; they
    round differently, so their logits are left out. in_part: arms that did so for some ubatches, such as decode
    below the offload threshold, each with what it computes there; the logits of those with the same are compared with
    one another's, and the other arms' likewise.
    """
    same_tokens, other_tokens = _compare({arm: told.tokens for arm, told in passes.items()})
    digests = {arm: told.digests for arm, told in passes.items() if told.digests}
    groups = _groups([arm for arm in digests if arm not in on_host], in_part)
    compared = [_compare({arm: digests[arm] for arm in group}) for group in groups]
    verdicts = [same for same, _ in compared if same is not None]
    apart = [*groups, *([arm] for arm in digests if arm in on_host)]
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


def _compare(values: Mapping[str, Mapping[tuple[float, float], object]]) -> tuple[bool | None, list[str]]:
    if len(values) < 2:
        return None, []
    first, *others = values
    shared = {arm: values[first].keys() & values[arm].keys() for arm in others}
    if not any(shared.values()):
        return None, []
    differ = [arm for arm, keys in shared.items() if any(values[first][key] != values[arm][key] for key in keys)]
    return not differ, differ


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """What some passes of an arm did in a phase."""

    is_recorded: bool  # whether any ubatch is known
    policy: str | None  # in effect in every ubatch of every pass; null: there were several
    on_host: bool  # whether all of them computed on the host and copied no weights
    bytes_h2d: float  # median; NaN: unknown
    divides: bool  # whether experts waited for the router's choice to be divided, be the device's part none


@dataclass(frozen=True, slots=True)
class ArmWork:
    """What some passes of an arm did in both phases."""

    arm: ManifestArm | None  # null: the manifest does not know it
    host_layers: tuple[int, ...] | None  # with weights in host memory; null: the manifest does not say
    phases: Mapping[Phase, PhaseWork]


class WorkDone:
    """Knows by pass and phase which policy was in effect, and where the weights in host memory were computed."""

    def __init__(self, ubatches: pa.Table, frames: Mapping[Scope, pd.DataFrame], arms: Sequence[ManifestArm]) -> None:
        """ubatches: the table; frames: `pass_figures`."""
        rows = ubatches.select(["pass_id", "phase", "policy"]).to_pandas().dropna().drop_duplicates()
        self._policies: dict[tuple[int, str], tuple[str, ...]] = {}
        for pass_id, phase, policy in rows.itertuples(index=False, name=None):
            self._policies[pass_id, phase] = (*self._policies.get((pass_id, phase), ()), policy)
        self._on_host = {phase: _on_host(frames[phase]) for phase in _PHASES}
        self._copied = {phase: frames[phase]["bytes_h2d"].to_dict() for phase in _PHASES}
        self._arms = {arm.name: (arm, arm.host_layers) for arm in arms}

    def of(self, arm: str, pass_ids: Sequence[int]) -> ArmWork:
        """What measured passes of an arm did."""
        known, host_layers = self._arms.get(arm, (None, None))
        return ArmWork(known, host_layers, {phase: self._in_phase(phase, known, pass_ids) for phase in _PHASES})

    def _in_phase(self, phase: Phase, arm: ManifestArm | None, pass_ids: Sequence[int]) -> PhaseWork:
        policies = {self._policies.get((pass_id, phase), ()) for pass_id in pass_ids}
        names = {name for of_pass in policies for name in of_pass}
        traits = arm.traits if arm is not None else None
        copied = [n_bytes for pass_id in pass_ids if not math.isnan(n_bytes := self._copied[phase][pass_id])]
        return PhaseWork(
            is_recorded=any(policies),
            policy=names.pop() if len(names) == 1 and () not in policies else None,
            on_host=all(self._on_host[phase][pass_id] for pass_id in pass_ids),
            bytes_h2d=statistics.median(copied) if copied else math.nan,
            divides=traits is not None and traits.divides and names != {traits.same_without_experts},
        )


def same_work(name: str, baseline: ArmWork, arm: ArmWork) -> str | None:
    """What the two shared in all phases that the figure covers; null where they may differ in any.

    A gate that turns prefetch off, or ubatches below the offload threshold, leave two policies with one behaviour: they
    then use the weights in host memory alike, and no verdict is due. Arms of one policy under two names are there to be
    compared.
    """
    first, second = baseline.arm, arm.arm
    if first is None or second is None or first.requested == second.requested or not _placed_alike(baseline, arm):
        return None
    phases = [phase for phase in PHASES_OF.get(name, ()) if baseline.phases[phase].is_recorded]
    shared = [_shared(phase, baseline.phases[phase], arm.phases[phase]) for phase in phases]
    return "; ".join(dict.fromkeys(map(str, shared))) if shared and None not in shared else None


def _shared(phase: Phase, baseline: PhaseWork, arm: PhaseWork) -> str | None:
    if baseline.policy is not None and baseline.policy == arm.policy and _copied_alike(baseline, arm):
        return f"{phase} ran as {baseline.policy} in the two arms"
    if baseline.on_host and arm.on_host and baseline.divides == arm.divides:
        return f"{phase} computed the weights in host memory on the host in the two arms"
    return None


def _copied_alike(baseline: PhaseWork, arm: PhaseWork) -> bool:
    """Whether both copied as many bytes in the phase, as far as it is known.

    Batches too large for the expert cache run as the policy below it, and copy only what the bank does not hold.
    """
    medians = baseline.bytes_h2d, arm.bytes_h2d
    if any(math.isnan(n_bytes) for n_bytes in medians):
        return True
    return abs(medians[0] - medians[1]) <= _AS_MANY * max(medians)


def _on_host(frame: pd.DataFrame) -> dict[int, bool]:
    """Which passes computed on the host in a phase and copied no weights: activations follow the work."""
    has_no_weights = (frame["bytes_h2d"] == 0) | frame["selective_saving_bytes"].isna()  # no copy names a tensor
    found = (frame["host_compute_ns"] > 0) & frame["bytes_h2d"].notna() & has_no_weights
    return dict(zip(found.index.tolist(), found.tolist(), strict=True))


def _placed_alike(first: ArmWork, second: ArmWork) -> bool:
    """Whether the manifest says that both kept the same layers in host memory."""
    is_alike = first.host_layers is not None and first.host_layers == second.host_layers
    return is_alike and not any(work.arm is not None and work.arm.is_resident for work in (first, second))
