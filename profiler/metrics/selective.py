"""What the router's choices say about the selective copy: shares touched, measured and modelled, and who is popular."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from profiler.metrics.routing import expert_flags


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


def expert_heat(experts: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """(layers, shares): in what share of its ubatches each layer used each expert, as (layers, experts)."""
    layer = experts["layer"].to_numpy()
    known, of_row = np.unique(layer, return_inverse=True)
    flags = expert_flags(experts)
    used = np.zeros((len(known), flags.shape[1]))
    np.add.at(used, of_row, flags)
    counts = np.bincount(of_row, minlength=len(known)).astype(np.float64)
    return known.astype(np.int64), used / np.maximum(counts, 1)[:, None]
