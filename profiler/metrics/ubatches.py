"""Figures of every ubatch: how one prompt's pieces, and each decode step, were served."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa

from profiler.metrics.groups import rows_among
from profiler.metrics.passes import int_column
from profiler.metrics.recording import Recording
from profiler.metrics.roles import PHASES

_KEYS: Final = ("pass_id", "phase", "ubatch")


def ubatch_figures(ubatches: pa.Table, recording: Recording) -> pd.DataFrame:
    """One row a ubatch, in the order of `ubatches`.

    Columns: pass_id, phase (text), ubatch, n_tokens, n_past, policy (the effective one), t_start, t_end, wall_ns,
    and the figures bytes_h2d, selective_saving_bytes, busy_copy_ns, busy_compute_ns, hidden_copy_ns,
    exposed_copy_ns, overlap_efficiency, hidden_ratio, idle_ns (docs/metrics.md; NaN is null).
    """
    frame: pd.DataFrame = ubatches.to_pandas()
    frame["phase"] = frame["phase"].astype(object)
    frame["wall_ns"] = frame["t_end"] - frame["t_start"]
    edges = (int_column(ubatches, name) for name in ("pass_id", "t_start", "t_end"))
    frame["idle_ns"] = np.where(frame["wall_ns"].isna(), np.nan, recording.idle(*edges))
    found = figures_by(recording, _KEYS)
    found["phase"] = phase_names(found["phase"])
    return frame.merge(found, how="left", on=list(_KEYS))


def figures_by(recording: Recording, names: tuple[str, ...]) -> pd.DataFrame:
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
            "bytes_h2d": np.append(moved.bytes_h2d, np.nan)[row],
            "whole_bytes": np.append(moved.whole_bytes, np.nan)[row],
            "selective_saving_bytes": np.append(moved.selective_saving_bytes, np.nan)[row],
        }
    )


def phase_names(codes: pd.Series[int]) -> np.ndarray:
    """Phase codes as their names, None for rows without a phase."""
    return np.array([*PHASES, None], dtype=object)[codes.to_numpy()]
