"""Whether two arms did the same work in a phase by design, so that a difference between their times is chance.

A gate that turns prefetch off, or ubatches below the offload threshold, leave two policies with one behaviour: they
then use the weights in host memory alike, and no verdict is due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import pandas as pd
import pyarrow as pa

from profiler.manifest import ManifestArm
from profiler.metrics import Scope

Phase = Literal["prefill", "decode"]
PHASES_OF: Final[dict[str, tuple[Phase, ...]]] = {
    "ttft_ns": ("prefill",),
    "prefill_tokens_per_s": ("prefill",),
    "decode_tokens_per_s": ("decode",),
    "wall_ns": ("prefill", "decode"),
}


class SameWork:
    """Knows by pass and phase which policy was in effect, and where the weights in host memory were computed."""

    def __init__(self, ubatches: pa.Table, frames: Mapping[Scope, pd.DataFrame], arms: Sequence[ManifestArm]) -> None:
        """ubatches: the table; frames: `pass_figures`."""
        rows = ubatches.select(["pass_id", "phase", "policy"]).to_pandas().dropna().drop_duplicates()
        self._policies: dict[tuple[int, str], tuple[str, ...]] = {}
        for pass_id, phase, policy in rows.itertuples(index=False, name=None):
            self._policies[pass_id, phase] = (*self._policies.get((pass_id, phase), ()), policy)
        self._on_host = {phase: _on_host(frames[phase]) for phase in ("prefill", "decode")}
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
        if policies is not None and policies == self._policy(phase, arm):
            return f"{phase} ran as {policies} in both"
        if self._is_on_host(phase, baseline) and self._is_on_host(phase, arm):
            return f"{phase} computed the weights in host memory on the host in both"
        return None

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
    placed = [arm.options.get("effective") for arm in (first, second)]
    layers = [found.get("host_layers") if isinstance(found, Mapping) else None for found in placed]
    return layers[0] is not None and layers[0] == layers[1] and not (first.is_resident or second.is_resident)
