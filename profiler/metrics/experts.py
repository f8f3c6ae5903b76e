"""What the `experts` table tells: the share of experts that tokens touch, how often the cache has them, and what the
router's choices look like (overlap of adjacent layers, popularity).

All read the `experts` table, whose `used` column is a bitmap (little-endian, expert 0 in bit 0 of byte 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Flags, Floats, Int64
from executor.errors import HprofError
from executor.passes import unpack_flags
from profiler.arithmetic.groups import Groups, group_by
from profiler.metrics.overlap import ratio
from profiler.schema import ABSENT, PHASES

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


def _share(groups: Groups, part: Int64, whole: Int64) -> Floats:
    known = (part >= 0) & (whole > 0)
    return ratio(groups.sum(np.where(known, part, 0)), groups.sum(np.where(known, whole, 0)))


def _column(experts: pa.Table, name: str) -> Int64:
    column = experts[name]
    if name == "phase":
        column = pc.index_in(column.cast(pa.string()), pa.array(PHASES))
    values: npt.NDArray[np.signedinteger] = pc.fill_null(column, ABSENT).to_numpy()
    return values.astype(np.int64)


def typical_use(experts: pd.DataFrame) -> pd.DataFrame:
    """One row a (n_tokens, phase) of `distinct_by_ubatch`: medians of the shares over the ubatches, of the experts
    touched also the least and the most, and the cache's hit rate over all of them together (hits / look-ups; NaN where
    nothing was looked up)."""
    groups = experts.groupby(["n_tokens", "phase"], dropna=False)
    found: pd.DataFrame = groups.agg(
        distinct_share=("distinct_share", "median"),
        distinct_least=("distinct_share", "min"),
        distinct_most=("distinct_share", "max"),
        copied_share=("copied_share", "median"),
    ).reset_index()
    hits = groups[["hits", "misses"]].sum(min_count=1).reset_index(drop=True)
    return found.assign(
        cache_hit_rate=ratio(hits["hits"].to_numpy(float), (hits["hits"] + hits["misses"]).to_numpy(float))
    )


def spread_by_layer(jaccard: pd.DataFrame) -> pd.DataFrame:
    """Quartiles of `adjacent_layer_jaccard` over the ubatches of each phase and layer: phase, layer, low, median,
    high. A token of decode has few experts and a prompt's ubatch many, so the two have no median in common."""
    groups = jaccard.groupby(["phase", "layer"], dropna=False)["jaccard"]
    quartiles = groups.quantile(np.array([0.25, 0.5, 0.75])).unstack()
    quartiles.columns = pd.Index(["low", "median", "high"])
    found: pd.DataFrame = quartiles.reset_index().sort_values("phase", ascending=False, kind="stable")
    return found.reset_index(drop=True)


def hottest_coverage(used: Floats) -> pd.DataFrame:
    """Which share of a layer's uses its N most popular experts serve, over the layers (index: N): low, median, high.

    used: the shares of `expert_heat`; layers that used nothing are left out.
    """
    ordered = -np.sort(-used, axis=1)
    totals = ordered.sum(axis=1)
    served = np.cumsum(ordered[totals > 0], axis=1) / totals[totals > 0, None]
    if not len(served):
        return pd.DataFrame({"low": [], "median": [], "high": []})
    quartiles = np.quantile(served, [0.25, 0.5, 0.75], axis=0)
    index = pd.RangeIndex(1, served.shape[1] + 1, name="experts")
    return pd.DataFrame(dict(zip(("low", "median", "high"), quartiles, strict=True)), index)


def heat_by_layer(layers: Int64, used: Floats) -> pd.DataFrame:
    """One row a layer of `expert_heat`: how many experts were ever, never and always used, and the most popular one."""
    return pd.DataFrame(
        {
            "layer": layers,
            "n_used": (used > 0).sum(axis=1),
            "n_never": (used == 0).sum(axis=1),
            "n_always": (used == 1).sum(axis=1),
            "most_popular": used.argmax(axis=1),
        }
    )


MAX_EXPERTS: Final = 4096  # a layer; bitmaps are laid side by side, as wide as the widest
_MAX_BITMAP_BYTES: Final = MAX_EXPERTS // 8


def expert_flags(experts: pa.Table) -> Flags:
    """The bitmaps as (rows, experts of the widest row) booleans."""
    if experts.num_rows == 0:
        return np.zeros((0, 0), dtype=np.bool_)
    raw = experts["used"].combine_chunks().to_pylist()
    width = max(len(row or b"") for row in raw)
    if width > _MAX_BITMAP_BYTES:
        raise HprofError(f"the table 'experts' has a bitmap of {8 * width:,} experts; the limit is {MAX_EXPERTS:,}.")
    if width == 0:
        return np.zeros((len(raw), 0), dtype=np.bool_)
    packed = np.frombuffer(b"".join((row or b"").ljust(width, b"\0") for row in raw), np.uint8).reshape(-1, width)
    return unpack_flags(packed)


def adjacent_layer_jaccard(experts: pa.Table) -> pd.DataFrame:
    """|A and B| / |A or B| of the expert sets of a MoE layer and of the next one, in the same ubatch.

    Columns: pass_id, phase, ubatch, layer (the upper one), n_tokens, jaccard. Sets of layers of different width are
    not compared, nor those that other tokens chose (a last layer that computes one row).
    """
    keys = experts.select(["pass_id", "phase", "ubatch", "layer", "n_tokens", "n_experts"]).to_pandas()
    keys["phase"] = keys["phase"].astype(object)
    order = keys.sort_values(["pass_id", "ubatch", "layer"], kind="stable").index.to_numpy()
    keys, flags = keys.iloc[order], expert_flags(experts)[order]
    comparable = keys[["pass_id", "ubatch", "n_experts", "n_tokens"]].to_numpy()
    same = (comparable[1:] == comparable[:-1]).all(axis=1)
    below, above = flags[:-1][same], flags[1:][same]
    either = (below | above).sum(axis=1)
    jaccard = np.divide((below & above).sum(axis=1), either, out=np.full(len(either), np.nan), where=either > 0)
    found = keys.iloc[1:][same][["pass_id", "phase", "ubatch", "layer", "n_tokens"]]
    frame: pd.DataFrame = found.assign(jaccard=jaccard)
    return frame


def distinct_by_ubatch(experts: pa.Table) -> pd.DataFrame:
    """One row a ubatch of a pass: pass_id, phase, ubatch, n_tokens, distinct, copied, n_experts, hits, misses (sums
    over its layers; hits and misses NaN where there is no cache), distinct_share and copied_share."""
    frame = experts.drop_columns(["used"]).to_pandas()
    frame["phase"] = frame["phase"].astype(object)
    groups = frame.groupby(["pass_id", "phase", "ubatch", "n_tokens"], sort=True, dropna=False)
    found: pd.DataFrame = groups[["distinct", "copied", "n_experts"]].sum()
    found[["hits", "misses"]] = groups[["hits", "misses"]].sum(min_count=1)
    found["distinct_share"] = found["distinct"] / found["n_experts"]
    found["copied_share"] = found["copied"] / found["n_experts"]
    return found.reset_index()


def uniform_curve(experts: pa.Table) -> pd.DataFrame:
    """D(n) if every expert were equally likely, for n from 1 to the largest ubatch: n_tokens, share.

    1 - (1 - n_used / n_experts)^n, with n_used from the rows of one token; empty where there are none. Real routers
    have favourites, and touch fewer.
    """
    frame = experts.select(["n_tokens", "n_experts", "distinct"]).to_pandas()
    single = frame[frame["n_tokens"] == 1]
    if single.empty:
        return pd.DataFrame({"n_tokens": [], "share": []})
    n_tokens = np.unique(np.geomspace(1, int(frame["n_tokens"].max()), 60).round())
    chance = float((single["distinct"] / single["n_experts"]).median())
    return pd.DataFrame({"n_tokens": n_tokens, "share": 1 - (1 - chance) ** n_tokens})


def expert_heat(experts: pa.Table) -> tuple[Int64, Floats]:
    """(layers, shares): in what share of its ubatches each layer used each expert, as (layers, experts)."""
    layer = experts["layer"].to_numpy()
    known, of_row = np.unique(layer, return_inverse=True)
    flags = expert_flags(experts)
    used = np.zeros((len(known), flags.shape[1]))
    np.add.at(used, of_row, flags)
    counts = np.bincount(of_row, minlength=len(known)).astype(np.float64)
    return known.astype(np.int64), used / np.maximum(counts, 1)[:, None]
