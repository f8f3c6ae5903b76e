"""What the slots of one pass held, and the figure of it: laid out once a pass, for it takes most of its page's time."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from dashboard.choice import Choice
from dashboard.figures.memory import over_time_figure
from dashboard.passes import ShownPass, lines
from dashboard.trace_root import Fingerprint
from profiler.metrics.memory import HeldOverTime, all_held, held_over_time, memory_parts, slot_holdings


@dataclass(frozen=True, slots=True)
class SlotsOfPass:
    """Shared between sessions: not to be changed."""

    fillings: pd.DataFrame  # `slot_holdings`
    steps: pd.DataFrame  # `held_over_time`
    held: HeldOverTime  # the steps on top of what stays
    figure: go.Figure


def slots_of(choice: Choice, one: ShownPass) -> SlotsOfPass | None:
    """Of a pass; null where nothing is known to have been copied into a slot."""
    return _slots_of(choice.found.key, choice.found.fingerprint, one.pass_id, _choice=choice, _one=one)


@st.cache_resource(max_entries=8, show_spinner=False)
def _slots_of(
    capture: bytes,  # noqa: ARG001 - a part of the key, as the next two
    fingerprint: Fingerprint,  # noqa: ARG001
    pass_id: int | None,
    _choice: Choice,
    _one: ShownPass,
) -> SlotsOfPass | None:
    fillings = slot_holdings(lines(_choice, [_one])[0])
    if fillings.empty:
        return None
    rows = _choice.capture.passes
    parts = memory_parts(rows[rows["pass_id"] == pass_id]).iloc[0]
    steps = held_over_time(fillings)
    held = all_held(steps, dict(parts))
    return SlotsOfPass(fillings, steps, held, over_time_figure(held, fillings))
