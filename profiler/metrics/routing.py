"""What the router's choices look like: overlap of adjacent layers, reuse by later tokens, what an LRU makes of it.

All read the `experts` table, whose `used` column is a bitmap (little-endian, expert 0 in bit 0 of byte 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from executor.errors import HprofError

MAX_EXPERTS: Final = 4096  # a layer; bitmaps are laid side by side, as wide as the widest
_MAX_BITMAP_BYTES: Final = MAX_EXPERTS // 8


@dataclass(frozen=True, slots=True)
class ReuseDistances:
    """Decode steps between two uses of an expert in a layer (1: used by the next token too)."""

    counts: NDArray[np.int64]  # index d: how many selections came d steps after the one before
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


def expert_flags(experts: pa.Table) -> NDArray[np.bool_]:
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
    return np.unpackbits(packed, axis=1, bitorder="little").astype(np.bool_)


def adjacent_layer_jaccard(experts: pa.Table) -> pd.DataFrame:
    """|A and B| / |A or B| of the expert sets of a MoE layer and of the next one, in the same ubatch.

    Columns: pass_id, ubatch, layer (the upper one), n_tokens, jaccard. Sets of layers of different width are
    not compared.
    """
    keys = experts.select(["pass_id", "ubatch", "layer", "n_tokens", "n_experts"]).to_pandas()
    order = keys.sort_values(["pass_id", "ubatch", "layer"], kind="stable").index.to_numpy()
    keys, flags = keys.iloc[order], expert_flags(experts)[order]
    comparable = keys[["pass_id", "ubatch", "n_experts"]].to_numpy()
    same = (comparable[1:] == comparable[:-1]).all(axis=1)
    below, above = flags[:-1][same], flags[1:][same]
    either = (below | above).sum(axis=1)
    jaccard = np.divide((below & above).sum(axis=1), either, out=np.full(len(either), np.nan), where=either > 0)
    frame: pd.DataFrame = keys.iloc[1:][same][["pass_id", "ubatch", "layer", "n_tokens"]].assign(jaccard=jaccard)
    return frame


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


def lru_hit_rate(distinct: NDArray[np.float64], n_places: float, n_used: int) -> float:
    """The hit rate of an LRU of `n_places` experts of one layer, from the layer's distinct count alone.

    `distinct[n]` is the mean number of distinct experts that n tokens use (distinct[0] = 0). An LRU of C places
    holds the distinct experts of the last T tokens, where distinct(T) = C; of the next token's `n_used` experts
    those miss that are new to these T: distinct(T + 1) - distinct(T) (Che's approximation; Che, Tung and Wang,
    2002).
    """
    tokens = np.arange(distinct.size)
    if n_places >= distinct[-1]:
        return 1.0 - float(distinct[-1] - distinct[-2]) / n_used
    window = float(np.interp(n_places, distinct, tokens))
    return 1.0 - (float(np.interp(window + 1, tokens, distinct)) - n_places) / n_used
