"""Links from a finding to the timeline: to the arm, cell and repetition that show it best, and there to the event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pandas as pd
import streamlit as st

from dashboard import address
from dashboard.choice import Choice
from dashboard.passes import repetition_keys
from dashboard.text import cell_key
from dashboard.trace_root import Fingerprint
from profiler.findings import Finding, Moment
from profiler.metrics.passes import CELL_KEYS, CellKey, cell_of, is_measured

_AROUND: Final = 6  # times the moment's length are shown around it
_LEAST_NS: Final = 20_000  # of what is shown
_COLUMNS: Final = [*CELL_KEYS, "pass_id", "arm", "warmup", "boot", "repetition", "t_start"]


def links(choice: Choice, finding: Finding) -> Iterator[tuple[str, dict[str, str]]]:
    """What each link is called, and the timeline's address parameters; one that names no moment where there is none."""
    found: dict[str, dict[str, str]] = {}
    for moment in finding.moments:
        if (link := _link(choice, moment)) is not None:
            found.setdefault(*link)  # of several devices the first is enough
    here = {"capture": choice.found.name} | dict(zip("ab", choice.arms, strict=False))
    yield from found.items() or [("See the timeline", here)]


def _link(choice: Choice, moment: Moment) -> tuple[str, dict[str, str]] | None:
    """Null for a pass that no page shows, such as a warm-up."""
    query = {"capture": choice.found.name} | address.JUMP
    if moment.pass_id is None:
        return ("See it on the timeline", query | _at("a", moment, 0)) if choice.sizes is None else None
    told = _told(choice.found.key, choice.found.fingerprint, moment.pass_id, _choice=choice)
    if told is None or choice.a is None:
        return None
    b = told.arm if told.arm not in choice.arms else choice.b or ""
    arms = tuple(sorted((choice.a, b)))  # the same where they are swapped
    rep = _repetition(choice.found.key, choice.found.fingerprint, moment.pass_id, arms, _choice=choice)
    query |= {"a": choice.a, "b": b, "cell": cell_key(told.cell), "rep": rep}
    if told.started_ns is not None:
        query |= _at("a" if told.arm == choice.a else "b", moment, told.started_ns)
    sizes = f", ubatch {told.cell.n_ubatch:,}" if told.cell.n_ubatch is not None else ""
    return f"See it on the timeline: {told.arm}{sizes}", {name: value for name, value in query.items() if value}


class _Pass(NamedTuple):
    arm: str
    cell: CellKey
    started_ns: int | None


@st.cache_resource(max_entries=256, show_spinner=False)
def _told(key: bytes, fingerprint: Fingerprint, pass_id: int, _choice: Choice) -> _Pass | None:  # noqa: ARG001 - a part of the key
    """What the capture says of a measured pass; kept, for a page has several links and is drawn anew at each click."""
    rows = _choice.capture.passes[_COLUMNS]  # all columns are slow to take apart
    mine = rows[rows["pass_id"] == pass_id]
    if len(mine) != 1 or not is_measured(mine).all():
        return None
    row = mine.iloc[0]
    return _Pass(str(row["arm"]), cell_of(row), None if pd.isna(row["t_start"]) else int(row["t_start"]))


@st.cache_resource(max_entries=256, show_spinner=False)
def _repetition(
    key: bytes,
    fingerprint: Fingerprint,
    pass_id: int,
    arms: tuple[str, ...],
    _choice: Choice,
) -> str:
    """What the timeline calls the pass's repetition beside those of these arms; empty where it has no number."""
    rows, told = _choice.capture.passes[_COLUMNS], _told(key, fingerprint, pass_id, _choice=_choice)
    assert told is not None
    beside = rows[told.cell.rows_in(rows) & rows["arm"].isin(arms)]
    return str(repetition_keys(beside).get(pass_id, ""))


def _at(side: str, moment: Moment, origin_ns: int) -> dict[str, str]:
    """The stretch around it, and what is chosen there, on the pass's own clock."""
    begin, end = moment.t_start - origin_ns, moment.t_end - origin_ns
    margin = max(_AROUND * (end - begin), _LEAST_NS) // 2
    return {"view": f"{begin - margin}~{end + margin}", "at": f"{side}:{begin}~{end}"}
