"""How soon later tokens use the experts of a token again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from executor.arrays import Int64
from profiler.metrics.experts import expert_flags


@dataclass(frozen=True, slots=True)
class ReuseDistances:
    """Decode steps between two uses of an expert in a layer (1: used by the next token too)."""

    counts: Int64  # index d: how many selections came d steps after the one before
    first_uses: int

    def share_within(self, steps: int) -> float | None:
        """Share of selections whose expert was used in the last `steps` steps; None without selections."""
        n = int(self.counts.sum()) + self.first_uses
        return float(self.counts[: steps + 1].sum()) / n if n else None

    @property
    def median(self) -> float | None:
        """Median distance of the selections that are repeats."""
        n = self.counts.sum()
        return float(np.searchsorted(self.counts.cumsum(), (n + 1) // 2)) if n else None


def reuse_distances(experts: pa.Table) -> ReuseDistances:
    """Over ubatches of one token: how many steps lie between two uses of the same expert of the same layer."""
    keys = experts.select(["pass_id", "ubatch", "layer", "n_tokens"]).to_pandas()
    single = (keys["n_tokens"] == 1).to_numpy()
    row, expert = np.nonzero(expert_flags(experts)[single])
    chosen = keys[single].iloc[row].assign(expert=expert)
    chosen = chosen.sort_values(["pass_id", "layer", "expert", "ubatch"], kind="stable")
    group = chosen[["pass_id", "layer", "expert"]].to_numpy()
    same = (group[1:] == group[:-1]).all(axis=1)
    distance = np.diff(chosen["ubatch"].to_numpy())[same]
    return ReuseDistances(np.bincount(distance, minlength=2).astype(np.int64), len(chosen) - int(same.sum()))
