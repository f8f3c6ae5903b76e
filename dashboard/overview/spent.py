"""Where the time of each arm's passes went, as stacked bars."""

from __future__ import annotations

from typing import Final

import pandas as pd
import streamlit as st

from dashboard import load, passes, show
from dashboard.choice import Choice
from dashboard.figures.spent import PART_LABELS, spent_figure
from dashboard.overview.words import UNKNOWN
from profiler.metrics.spent import time_spent
from profiler.report.units import format_ns

_IN_WORDS: Final = {
    "compute alone": "compute_ns",
    "hidden copy": "hidden_ns",
    "exposed copy": "exposed_ns",
    "idle": "idle_ns",
}


def where_time_went(choice: Choice) -> None:
    """A bar for each arm on show, with the same figures beside it."""
    st.subheader("Where the time went", anchor=False)
    measured = _measured(choice)
    n_devices = max(len(choice.report.devices), 1)
    spent = time_spent(measured, n_devices).groupby(measured["arm"]).mean().reindex(choice.arms)
    if spent[["compute_ns", "hidden_ns", "exposed_ns"]].isna().all(axis=None):
        show.nothing("The source recorded no copies or kernels of these passes, so where their time went is unknown.")
        return
    labels = [f"{letter}  {arm}" for letter, arm in zip("AB", choice.arms, strict=False)]
    show.figure(
        spent_figure(spent, labels),
        alt=_alt(spent, labels),
        key="spent",
        table=_table(spent, labels),
        name="where-the-time-went",
        beside=True,
    )
    counts = measured["arm"].value_counts()
    over = " and ".join(f"{counts.get(arm, 0)} passes of {arm}" for arm in choice.arms)
    show.sentences([f"Means over {over}, prefill and decode together.", *_of_host(measured, choice.arms)])


def _of_host(measured: pd.DataFrame, arms: list[str]) -> list[str]:
    """Where the host computes the device is idle, which needs telling."""
    found = measured.groupby("arm")["host_compute_ns"].mean().reindex(arms).fillna(0.0)
    told = [f"{format_ns(value)} in {arm}" for arm, value in found.items() if value > 0]
    return [f"The device also idles while the host computes for it: {' and '.join(told)}."] if told else []


def _measured(choice: Choice) -> pd.DataFrame:
    """Figures of the passes of the chosen cell and arms, warm-ups left out."""
    frame = load.figures_of_passes(choice.found)
    return frame[frame["pass_id"].isin(passes.of_cell(choice)["pass_id"])]


def _table(spent: pd.DataFrame, labels: list[str]) -> pd.DataFrame:
    texts = spent.map(lambda value: format_ns(value) if value == value else UNKNOWN).T
    texts.columns = pd.Index(labels)
    texts.insert(0, "part", [PART_LABELS[str(part)] for part in texts.index])
    return texts


def _alt(spent: pd.DataFrame, labels: list[str]) -> str:
    """The stacked bars in a sentence each."""
    told = []
    for label, (_, row) in zip(labels, spent.iterrows(), strict=True):
        told.append(f"{label}: " + ", ".join(f"{name} {format_ns(row[key])}" for name, key in _IN_WORDS.items()))
    return "Where the time went. " + "; ".join(told) + "."
