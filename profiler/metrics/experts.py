"""How many experts the tokens touched, and how often the cache had them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profiler.arithmetic.intervals import Int64
from profiler.metrics.groups import Floats, Groups, group_by
from profiler.metrics.overlap import ratio
from profiler.metrics.roles import ABSENT, PHASES

EXPERT_COLUMNS = ("pass_id", "phase", "ubatch", "layer", "n_experts", "distinct", "copied", "hits", "misses")


@dataclass(frozen=True, slots=True)
class ExpertUse:
    """One element a group; NaN where the table does not say."""

    keys: dict[str, Int64]
    distinct_share: Floats  # experts touched / experts there are, summed over layers and ubatches
    copied_share: Floats  # experts that crossed the bus / experts there are
    cache_hit_rate: Floats  # hits / (hits + misses)


def expert_use(experts: pa.Table, names: Sequence[str]) -> ExpertUse:
    """Shares over the rows of `experts` (EXPERT_COLUMNS), grouped by 'pass_id', 'phase', 'ubatch' or 'layer'."""
    columns = {name: _column(experts, name) for name in EXPERT_COLUMNS}
    groups = group_by({name: columns[name] for name in names})
    hits, misses = columns["hits"], columns["misses"]
    cached = (hits >= 0) & (misses >= 0)
    n_hits = groups.sum(np.where(cached, hits, 0))
    return ExpertUse(
        groups.keys,
        _share(groups, columns["distinct"], columns["n_experts"]),
        _share(groups, columns["copied"], columns["n_experts"]),
        ratio(n_hits, n_hits + groups.sum(np.where(cached, misses, 0))),
    )


def _share(groups: Groups, part: npt.NDArray[np.int64], whole: npt.NDArray[np.int64]) -> Floats:
    known = (part >= 0) & (whole > 0)
    return ratio(groups.sum(np.where(known, part, 0)), groups.sum(np.where(known, whole, 0)))


def _column(experts: pa.Table, name: str) -> Int64:
    column = experts[name]
    if name == "phase":
        column = pc.index_in(column.cast(pa.string()), pa.array(PHASES))
    values: npt.NDArray[np.signedinteger] = pc.fill_null(column, ABSENT).to_numpy()
    return values.astype(np.int64)
