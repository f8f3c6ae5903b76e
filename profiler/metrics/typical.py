"""Medians over the passes of one arm and cell: its typical ubatches and layers."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

_UBATCH_FIGURES: Final = ["n_tokens", "bytes_h2d", "whole_bytes", "selective_saving_bytes"]
_LAYER_FIGURES: Final = ["compute_ns", "copy_ns", "hidden_ns", "exposed_ns", "wait_ns", "next_whole_copy_ns"]


def typical_ubatches(ubatches: pd.DataFrame) -> pd.DataFrame:
    """One row a (ubatch, phase) of `ubatch_figures`: medians of tokens and bytes over the passes."""
    found: pd.DataFrame = ubatches.groupby(["ubatch", "phase"], sort=True)[_UBATCH_FIGURES].median().reset_index()
    return found


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


def paying_share(layers: pd.DataFrame) -> float | None:
    """In what share of the layers and ubatches with a copy to prefetch it pays; null where there is none."""
    known = _before_copies(layers)["pays"].dropna().astype(float)
    share = float(known.mean()) if len(known) else float("nan")
    return None if np.isnan(share) else share


def _before_copies(layers: pd.DataFrame) -> pd.DataFrame:
    """Rows whose next layer is copied: before a resident one, and where the host computes, there is nothing ahead."""
    return layers[layers["next_whole_copy_ns"] > 0]
