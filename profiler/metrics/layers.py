"""A layer's compute time C, the time T that its copy takes, and whether C can hide the next T."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from profiler.metrics.groups import rows_among
from profiler.metrics.recording import Recording
from profiler.metrics.roles import WAIT
from profiler.metrics.ubatches import figures_by, phase_names

_KEYS: Final = ("pass_id", "phase", "ubatch", "layer")
_UBATCH: Final = list(_KEYS[:3])


def layer_figures(recording: Recording) -> pd.DataFrame:
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
    frame = figures_by(recording, _KEYS).rename(
        columns={
            "busy_compute_ns": "compute_ns",
            "busy_copy_ns": "copy_ns",
            "hidden_copy_ns": "hidden_ns",
            "exposed_copy_ns": "exposed_ns",
        }
    )
    frame = frame.drop(columns=["overlap_efficiency", "hidden_ratio", "selective_saving_bytes"])
    keys, waited_ns = recording.busy(_KEYS, WAIT)
    mine = {name: frame[name].to_numpy() for name in _KEYS}
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
