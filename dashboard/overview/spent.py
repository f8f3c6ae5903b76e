"""Where the time went, as stacked bars and cards: of each arm's passes, or of each device of an imported trace."""

from __future__ import annotations

from typing import Final

import pandas as pd
import streamlit as st

from dashboard import address, load, passes, show
from dashboard.choice import Choice
from dashboard.figures.time import PART_LABELS, spent_figure
from dashboard.table_columns import in_one_unit
from dashboard.text import escape_markdown
from executor.units import UNKNOWN, format_bytes, format_count, format_gb_s, format_ns, format_value
from profiler.metrics import CopyFigures, DeviceFigures, Scope
from profiler.metrics.devices import TIME_PARTS, device_spent, typical_time_spent
from profiler.report.cells import Cell

_SCOPES: Final[dict[Scope, str]] = {"pass": "whole pass", "prefill": "prefill", "decode": "decode"}
_MOST: Final = 0.5  # of a pass: the bars of the whole one then show that part
_OVER: Final[dict[Scope, str]] = {
    "pass": ", prefill and decode together",
    "prefill": ", the prompt alone; the cards below count whole passes",
    "decode": ", decode alone; the cards below count whole passes",
}
_IN_WORDS: Final = {
    "compute alone": "compute_ns",
    "hidden copy": "hidden_ns",
    "exposed copy": "exposed_ns",
    "idle": "idle_ns",
    "CPU compute": "host_compute_ns",
}


def where_time_went(choice: Choice) -> None:
    """Bars for each arm on show, of whole passes or of one phase."""
    st.header("Where the time went", anchor=False)
    scopes = _scopes(choice)
    first = scopes.index(telling_scope(choice.cell, choice.b)) if len(scopes) > 1 else 0
    scope = address.segments(
        "Part of the pass", scopes, "part", _SCOPES.__getitem__, first=first, label_visibility="collapsed"
    )
    measured = _measured(choice, scope)
    at_work = {name: arm.n_devices for name, arm in choice.cell.arms.items()}
    typical = typical_time_spent(measured, measured["arm"].map(at_work)).reindex(choice.arms)
    spent = typical if (typical["host_compute_ns"] > 0).any() else typical[list(TIME_PARTS)]
    if spent[["compute_ns", "hidden_ns", "exposed_ns"]].isna().all(axis=None):
        show.nothing("The source recorded no copies or kernels of these passes, so where their time went is unknown.")
        return
    labels = [f"{letter}  {arm}" for letter, arm in zip("AB", choice.arms, strict=False)]
    show.figure(
        spent_figure(spent, labels),
        alt=_spent_alt(spent, labels),
        key="spent",
        table=_spent_table(spent, labels),
        name="where-the-time-went",
    )
    counts = measured["arm"].value_counts()
    over = " and ".join(f"{format_count(int(counts.get(arm, 0)), 'pass')} of {arm}" for arm in choice.arms)
    show.sentences([f"Medians over {over}{_OVER[scope] if len(scopes) > 1 else ''}."])


def telling_scope(cell: Cell, b: str | None) -> Scope:
    """The part to open on: the whole pass, whose figures the cards have; but where the page's first sentence is about
    a part that takes less than half of B's pass, that part. It is about the prompt, and about decode where B did A's
    work in the prompt and not there.
    """
    if b is None:
        return "pass"
    compared = cell.against_baseline.get(b, {})
    prompt = compared.get("prefill_tokens_per_s") or compared.get("ttft_ns")
    decode = compared.get("decode_tokens_per_s")
    first, whole = cell.arms[b].median("ttft_ns"), cell.arms[b].median("wall_ns")
    if prompt is None or first is None or not whole:
        return "pass"
    is_decode = prompt.is_same_work and decode is not None and not decode.is_same_work
    share = 1 - first / whole if is_decode else first / whole
    return "pass" if share >= _MOST else "decode" if is_decode else "prefill"


def _scopes(choice: Choice) -> list[Scope]:
    """Whole passes, and each phase where the cell has both."""
    sizes = choice.sizes
    return list(_SCOPES) if sizes is not None and sizes.n_prompt and sizes.n_gen else ["pass"]


def _measured(choice: Choice, scope: Scope) -> pd.DataFrame:
    """Figures of the passes of the chosen cell and arms, warm-ups left out."""
    frame = load.figures_of_passes(choice.found, scope)
    return frame[frame["pass_id"].isin(passes.passes_of_cell(choice)["pass_id"])]


def _spent_table(spent: pd.DataFrame, labels: list[str]) -> pd.DataFrame:
    columns = dict(zip(labels, (row for _, row in spent.iterrows()), strict=True))
    return pd.DataFrame({"part": [PART_LABELS[str(part)] for part in spent.columns]}).assign(
        **{title: values.to_numpy() for title, values in in_one_unit(columns, "ns").items()}
    )


def _time(ns: float) -> str:
    return UNKNOWN if pd.isna(ns) else format_ns(ns)


def _spent_alt(spent: pd.DataFrame, labels: list[str]) -> str:
    """The stacked bars in a sentence each."""
    told = []
    for label, (_, row) in zip(labels, spent.iterrows(), strict=True):
        known = {name: row[key] for name, key in _IN_WORDS.items() if key in row}
        told.append(f"{label}: " + ", ".join(f"{name} {_time(value)}" for name, value in known.items()))
    return "Where the time went. " + "; ".join(told) + "."


_DIRECTIONS: Final = {
    "h2d": "to the device",
    "d2h": "to the host",
    "d2d": "on the device",
    "uvm_h2d": "pages moved to the device",
    "uvm_d2h": "pages moved to the host",
}
_LEAST_FOR_A_RATE: Final = 1_000_000  # bytes


def device_cards(choice: Choice) -> None:
    """One card a device: how much was copied, how fast, how much of it hidden."""
    devices = choice.report.devices
    columns = st.columns(min(len(devices), 3), gap="small")
    for number, device in enumerate(devices):
        with columns[number % len(columns)], st.container(border=True):
            _device_card(device)


def _device_card(device: DeviceFigures) -> None:
    st.markdown(f"**{escape_markdown(device.title)}**")
    main = next((device.copies[name] for name in ("h2d", "uvm_h2d") if name in device.copies), None)
    if main is not None:
        st.metric("Copy time hidden behind compute", format_value(main.hidden_ratio, "share"))
    lines = [f"{format_count(device.kernels, 'kernel')}, {format_ns(device.compute_busy_ns)} busy"]
    lines += [f"{_DIRECTIONS.get(name, name)}: {_copies(copies)}" for name, copies in device.copies.items()]
    st.caption("  \n".join(escape_markdown(line) for line in lines))


def _copies(copies: CopyFigures) -> str:
    size = format_bytes(copies.bytes) if copies.bytes is not None else format_count(copies.count, "copy")
    # Of a few bytes the rate says how long a call takes, not how fast the link is.
    has_speed = copies.gb_s is not None and copies.bytes is not None and copies.bytes >= _LEAST_FOR_A_RATE
    speed = f" at {format_gb_s(copies.gb_s)}" if has_speed and copies.gb_s else ""
    exposed = f", exposed {format_ns(copies.exposed_ns)}" if copies.exposed_ns is not None else ""
    return f"{size}{speed}; busy {format_ns(copies.busy_ns)}{exposed}"


def device_time(choice: Choice) -> None:
    """What each device of an imported trace did, as stacked bars."""
    spent = device_spent(choice.report.devices, tells_copies=not choice.report.has_unrecorded_copies)
    labels = [device.title for device in choice.report.devices]
    known = spent[["compute_ns", "hidden_ns", "exposed_ns"]]  # a trace says no more of the parts
    if known.isna().all(axis=None):
        show.nothing("The source did not record the copies that the host asked for, so what hid them is unknown.")
        return
    texts = _spent_table(known, labels)
    show.figure(
        spent_figure(spent, labels),
        alt="busy time of each device: computing, hidden and exposed copies from the host",
        key="devices",
        table=texts,
        name="device-time",
        beside=len(labels) == 1,  # the columns of more have no room there
    )
