"""What the devices of an imported trace did: a card and a bar each."""

from __future__ import annotations

from typing import Final

import pandas as pd
import streamlit as st

from dashboard import show
from dashboard.choice import Choice
from dashboard.figures.spent import PART_LABELS, spent_figure
from dashboard.overview.words import UNKNOWN
from dashboard.text import plain
from profiler.metrics import CopyFigures, DeviceFigures
from profiler.metrics.spent import device_spent
from profiler.report.summary import device_name
from profiler.report.units import format_bytes, format_gb_s, format_ns, format_share

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
            _card(device)


def _card(device: DeviceFigures) -> None:
    st.markdown(f"**{plain(device_name(device))}**")
    main = next((device.copies[name] for name in ("h2d", "uvm_h2d") if name in device.copies), None)
    if main is not None:
        hidden = format_share(main.hidden_ns / main.busy_ns) if main.busy_ns else UNKNOWN
        st.metric("Copy time hidden behind compute", hidden)
    lines = [f"{device.kernels:,} kernels, {format_ns(device.compute_busy_ns)} busy"]
    lines += [f"{_DIRECTIONS.get(name, name)}: {_copies(copies)}" for name, copies in device.copies.items()]
    st.caption("  \n".join(plain(line) for line in lines))


def _copies(copies: CopyFigures) -> str:
    size = format_bytes(copies.bytes) if copies.bytes is not None else f"{copies.count:,} copies"
    # Of a few bytes the rate says how long a call takes, not how fast the link is.
    has_speed = copies.gb_s is not None and copies.bytes is not None and copies.bytes >= _LEAST_FOR_A_RATE
    speed = f" at {format_gb_s(copies.gb_s)}" if has_speed and copies.gb_s else ""
    return f"{size}{speed}; busy {format_ns(copies.busy_ns)}, exposed {format_ns(copies.exposed_ns)}"


def device_time(choice: Choice) -> None:
    """What each device of an imported trace did, as stacked bars."""
    spent = device_spent(choice.report.devices)
    labels = [device_name(device) for device in choice.report.devices]
    texts = spent[["compute_ns", "hidden_ns", "exposed_ns"]].map(format_ns).T  # a trace says no more of the parts
    texts.columns = pd.Index(labels)
    texts.insert(0, "part", [PART_LABELS[str(part)] for part in texts.index])
    show.figure(
        spent_figure(spent, labels),
        alt="busy time of each device: computing, hidden and exposed copies from the host",
        key="devices",
        table=texts,
        name="device-time",
        beside=len(labels) == 1,  # the columns of more have no room there
    )
