"""Figures of every ubatch and of every layer of a ubatch (compute time C, copy time T, whether C hides the next T),
and their medians over the passes of one arm.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa

from profiler.arithmetic.joins import rows_among
from profiler.metrics.figures import int_column
from profiler.metrics.pieces import OverlapByPass
from profiler.schema import PHASES, WAIT

_UBATCH_KEYS: Final = ("pass_id", "phase", "ubatch")


def ubatch_figures(ubatches: pa.Table, recording: OverlapByPass) -> pd.DataFrame:
    """One row a ubatch, in the order of `ubatches`.

    Columns: pass_id, phase (text), ubatch, n_tokens, n_past, policy (the effective one), t_start, t_end, wall_ns,
    and the figures bytes_h2d, selective_saving_bytes, busy_copy_ns, busy_compute_ns, hidden_copy_ns,
    exposed_copy_ns, overlap_efficiency, hidden_ratio, collective_ns, idle_ns (docs/metrics.md; NaN is null).
    """
    frame: pd.DataFrame = ubatches.to_pandas()
    frame["phase"] = frame["phase"].astype(object)
    frame["wall_ns"] = frame["t_end"] - frame["t_start"]
    edges = (int_column(ubatches, name) for name in ("pass_id", "t_start", "t_end"))
    frame["idle_ns"] = np.where(frame["wall_ns"].isna(), np.nan, recording.idle(*edges))
    if not recording.tells_times:
        frame["wall_ns"] = np.nan
    found = figures_by(recording, _UBATCH_KEYS)
    found["phase"] = phase_names(found["phase"])
    return frame.merge(found, how="left", on=list(_UBATCH_KEYS))


def figures_by(recording: OverlapByPass, names: tuple[str, ...]) -> pd.DataFrame:
    """Copy, compute and overlap figures of every group of `names`; phases are still codes."""
    overlap, moved = recording.overlap(names), recording.transfers(names)
    row = rows_among(overlap.keys, moved.keys)
    return pd.DataFrame(
        {
            **overlap.keys,
            "busy_copy_ns": overlap.busy_copy_ns,
            "busy_compute_ns": overlap.busy_compute_ns,
            "hidden_copy_ns": overlap.hidden_copy_ns,
            "exposed_copy_ns": overlap.exposed_copy_ns,
            "overlap_efficiency": overlap.overlap_efficiency,
            "hidden_ratio": overlap.hidden_ratio,
            "collective_ns": overlap.collective_ns,
            "bytes_h2d": np.append(moved.bytes_h2d, np.nan)[row],
            "whole_bytes": np.append(moved.whole_bytes, np.nan)[row],
            "selective_saving_bytes": np.append(moved.selective_saving_bytes, np.nan)[row],
        }
    )


def phase_names(codes: pd.Series[int]) -> np.ndarray:
    """Phase codes as their names, None for rows without a phase."""
    return np.array([*PHASES, None], dtype=object)[codes.to_numpy()]


_LAYER_KEYS: Final = ("pass_id", "phase", "ubatch", "layer")
_UBATCH: Final = list(_LAYER_KEYS[:3])


def layer_figures(recording: OverlapByPass) -> pd.DataFrame:
    """One row a layer of a ubatch of a pass, in the order (pass_id, phase, ubatch, layer).

    compute_ns (C)         union of the layer's compute
    copy_ns (T)            union of the copies that bring its weights; whole_copy_ns: T if every byte had been copied
    wait_ns                union of the waits recorded for it (NaN in passes that record none)
    hidden_ns, exposed_ns  the parts of T that compute did, did not cover
    bytes_h2d, whole_bytes bytes moved, bytes that whole copies would have moved
    next_whole_copy_ns     whole_copy_ns of the next layer of the same ubatch (NaN for the last one)
    hides                  C >= T' : the layer's compute can hide the next layer's whole copy
    pays                   C + T > T' : the condition under which prefetch beats copies in line, with T the (selective)
                           copy of this layer and T' the next layer's whole copy
                           (ggml's "allow prefetching tensor overrides"); read it on an arm that copies in line
    """
    frame = figures_by(recording, _LAYER_KEYS).rename(
        columns={
            "busy_compute_ns": "compute_ns",
            "busy_copy_ns": "copy_ns",
            "hidden_copy_ns": "hidden_ns",
            "exposed_copy_ns": "exposed_ns",
        }
    )
    frame = frame.drop(columns=["overlap_efficiency", "hidden_ratio", "collective_ns", "selective_saving_bytes"])
    keys, waited_ns = recording.busy(_LAYER_KEYS, WAIT)
    mine = {name: frame[name].to_numpy() for name in _LAYER_KEYS}
    frame["wait_ns"] = np.append(waited_ns.astype(np.float64), np.nan)[rows_among(mine, keys)]
    frame = frame[frame["layer"] >= 0].reset_index(drop=True)
    says_waits = frame["pass_id"].isin(np.unique(keys["pass_id"]))
    frame["wait_ns"] = frame["wait_ns"].mask(says_waits & frame["wait_ns"].isna(), 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.where(frame["bytes_h2d"] > 0, frame["whole_bytes"] / frame["bytes_h2d"], 1.0)
    frame["whole_copy_ns"] = frame["copy_ns"] * scale
    frame["next_whole_copy_ns"] = frame.groupby(_UBATCH, sort=False)["whole_copy_ns"].shift(-1)
    known = frame["next_whole_copy_ns"].notna()
    frame["hides"] = (frame["compute_ns"] >= frame["next_whole_copy_ns"]).where(known)
    frame["pays"] = (frame["compute_ns"] + frame["copy_ns"] > frame["next_whole_copy_ns"]).where(known)
    frame["phase"] = phase_names(frame["phase"])
    return frame


_UBATCH_FIGURES: Final = ["n_tokens", "bytes_h2d", "whole_bytes", "selective_saving_bytes"]
_LAYER_FIGURES: Final = ["compute_ns", "copy_ns", "hidden_ns", "exposed_ns", "wait_ns", "next_whole_copy_ns"]


def typical_ubatches(ubatches: pd.DataFrame) -> pd.DataFrame:
    """One row a (ubatch, phase) of `ubatch_figures`: medians of tokens and bytes over the passes."""
    found: pd.DataFrame = ubatches.groupby(["ubatch", "phase"], sort=True)[_UBATCH_FIGURES].median().reset_index()
    return found


def saved_share(moved_bytes: float, saved_bytes: float) -> float | None:
    """What share of whole copies' bytes was not moved; None where nothing would have been."""
    whole = moved_bytes + saved_bytes
    return saved_bytes / whole if whole > 0 else None


def typical_layers(layers: pd.DataFrame) -> pd.DataFrame:
    """One row a layer of `layer_figures` of one ubatch: medians over the passes, and `copy_bound`: T > C."""
    found: pd.DataFrame = layers.groupby("layer", sort=True)[_LAYER_FIGURES].median().reset_index()
    return found.assign(copy_bound=found["copy_ns"] > found["compute_ns"])


def prefetch_margin(layers: pd.DataFrame) -> pd.DataFrame:
    """C + T - T' in ns, medians over the passes: ubatches down, layers across (`layer_figures` explains C, T, T').

    Above zero, `pays` of `layer_figures` holds. Layers before one that copies nothing are left out.
    """
    layers = _before_copies(layers)
    margin = layers["compute_ns"] + layers["copy_ns"] - layers["next_whole_copy_ns"]
    known = layers.assign(margin=margin)[margin.notna()]
    grid: pd.DataFrame = known.pivot_table(index="ubatch", columns="layer", values="margin", aggfunc="median")
    return grid


def margin_by_layer(margin: pd.DataFrame) -> pd.DataFrame:
    """Quartiles of `prefetch_margin` over the ubatches of each layer (index: layer): low, median, high, in ns."""
    quartiles: pd.DataFrame = margin.quantile([0.25, 0.5, 0.75]).T
    quartiles.columns = pd.Index(["low", "median", "high"])
    return quartiles


def paying_share(margin: pd.DataFrame) -> float | None:
    """In what share of the layers and ubatches of `prefetch_margin` prefetch pays; None where there is none."""
    known = margin.to_numpy(float)
    known = known[~np.isnan(known)]
    return float((known > 0).mean()) if len(known) else None


def _before_copies(layers: pd.DataFrame) -> pd.DataFrame:
    """Rows whose next layer is copied: before a resident one, and where the host computes, there is nothing ahead."""
    return layers[layers["next_whole_copy_ns"] > 0]
