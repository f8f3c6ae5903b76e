"""The canvas timeline as a Streamlit component; its parts are plain files beside this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import streamlit as st

from dashboard.figures.style import TIMELINE
from profiler.metrics.lane_titles import CATEGORY_TITLES
from profiler.metrics.timeline_detail import N_BINS

_HERE: Final = Path(__file__).parent
_NAME: Final = "hprof.timeline"
Windows = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the viewer wants: the events of these stretches, one a side; this stretch as an arm."""

    windows: Windows | None
    arm: tuple[int, int] | None


@cache
def script() -> str:
    """The viewer's files as one module, in the order of their numbers."""
    files = sorted((_HERE / "js").glob("*.js"), key=lambda file: file.name)
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


@cache
def _component() -> Any:
    texts = {name: (_HERE / f"view.{name}").read_text(encoding="utf-8") for name in ("html", "css")}
    return st.components.v2.component(_NAME, html=texts["html"], css=texts["css"], js=script())


def show(packed: bytes, *, key: str) -> Asked:
    """Draw it. Gives what the viewer asked for in this run."""
    asked = _component()(data=packed, key=key, on_window_change=lambda: None, on_arm_change=lambda: None)
    arms = checked_windows([asked.arm])
    return Asked(checked_windows(asked.window), arms[0] if arms else None)


def checked_windows(asked: object) -> Windows | None:
    """What came from the browser as windows in ns, null if it is anything else."""
    if not isinstance(asked, Sequence) or isinstance(asked, str):
        return None
    pairs = [tuple(pair) for pair in asked if isinstance(pair, Sequence) and not isinstance(pair, str)]
    if not pairs or any(len(p) != 2 or not all(isinstance(t, int) and abs(t) < 2**53 for t in p) for p in pairs):
        return None
    return [(min(a, b), max(a, b)) for a, b in pairs]


def header(
    key: str, link_gb_s: float | None, *, can_be_cut: bool = False, first_view: tuple[int, int] | None = None
) -> dict[str, Any]:
    """What the viewer needs beside the events. The same `key` means the same passes: the view stays where it is.

    can_be_cut: whether a chosen stretch can become an arm. first_view: what is on the screen first, where the address
    says nothing, in ns after the origin; null: everything.
    """
    return {
        "key": key,
        "n_bins": N_BINS,
        "palette": TIMELINE,
        "categories": CATEGORY_TITLES,
        "link_gb_s": link_gb_s,
        "can_be_cut": can_be_cut,
        "first_view": first_view,
    }
