"""Links from a finding to the timeline: to the arm, cell and repetition that show it best, and there to the event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd

from dashboard import address
from dashboard.choice import Choice
from dashboard.passes import repetition_keys
from dashboard.text import cell_key
from profiler.findings import Finding, Moment
from profiler.metrics.passes import CELL_KEYS, cell_of, is_measured

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
    rows = choice.capture.passes[_COLUMNS]  # all columns are slow to take apart
    mine = rows[rows["pass_id"] == moment.pass_id]
    if len(mine) != 1 or not is_measured(mine).all() or choice.a is None:
        return None
    row = mine.iloc[0]
    arm, cell, started = str(row["arm"]), cell_of(row), row["t_start"]
    query |= {"a": choice.a, "b": arm if arm not in choice.arms else choice.b or ""}
    query |= {"cell": cell_key(cell)}
    beside = rows[cell.rows_in(rows) & rows["arm"].isin([query["a"], query["b"]])]
    if (key := repetition_keys(beside).get(moment.pass_id)) is not None:
        query["rep"] = str(key)
    if pd.notna(started):
        query |= _at("a" if arm == choice.a else "b", moment, int(started))
    sizes = f", ubatch {cell.n_ubatch:,}" if cell.n_ubatch is not None else ""
    return f"See it on the timeline: {arm}{sizes}", {name: value for name, value in query.items() if value}


def _at(side: str, moment: Moment, origin_ns: int) -> dict[str, str]:
    """The stretch around it, and what is chosen there, on the pass's own clock."""
    begin, end = moment.t_start - origin_ns, moment.t_end - origin_ns
    margin = max(_AROUND * (end - begin), _LEAST_NS) // 2
    return {"view": f"{begin - margin}~{end + margin}", "at": f"{side}:{begin}~{end}"}
