"""Timeline: arm A above arm B on one time axis, every copy and every compute interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pandas as pd
import streamlit as st

from dashboard import passes, show, stretches, trace_root
from dashboard.choice import Choice, current
from dashboard.table_columns import in_one_unit
from dashboard.timeline import component
from dashboard.timeline.columns import with_header
from profiler.metrics.lane_titles import lane_title
from profiler.metrics.timeline import Timeline

_LARGE: Final = 200_000  # events


def main(choice: Choice) -> None:
    about, repetition = st.columns([4, 1], vertical_alignment="bottom")
    with about:
        show.head("Timeline", choice)
    with repetition:
        shown = passes.choose_repetition(choice)
    if all(len(line) == 0 for line in passes.lines(choice, shown)):
        show.nothing(
            "No copies or kernels were recorded for these passes.",
            "A llama-bench file holds times only; record a trace with `hprof run`, Nsight Systems or torch.profiler.",
        )
        return
    canvas(choice, shown)
    is_large = sum(len(line) for line in passes.lines(choice, shown)) > _LARGE
    # A large timeline is first on the screen when nothing else has to be drawn with it.
    if not is_large or st.toggle("Show how busy each lane was", key="busy-shown"):
        lanes(choice, shown)
    downloads(choice, shown)


def downloads(choice: Choice, shown: list[passes.ShownPass]) -> None:
    """The events on the page as files."""
    name = choice.found.name
    with st.container(horizontal=True, gap="small"):
        show.download(
            "Chrome JSON", lambda: passes.chrome_json(choice, shown), f"{name}.trace.json", "application/json", "chrome"
        )
        show.table_downloads(
            lambda: passes.events_table(choice, shown), key="events", name=f"{name}-events", what="Events, "
        )
    st.caption("The Chrome file opens at ui.perfetto.dev and in chrome://tracing.")


@st.fragment
def canvas(choice: Choice, shown: list[passes.ShownPass]) -> None:
    """The viewer; where not all events fit, it asks for those around what it shows, and only this part runs again."""
    windows = st.session_state.get("_windows") if st.session_state.get("_windows_of") == shown else None
    with show.one_sentence():  # a fragment that runs alone runs without the app around it
        packed = passes.packed(choice, shown, windows)
        can_be_cut = stretches.can_be_cut(choice)
        if can_be_cut and (spans := stretches.on_canvas(choice)):
            packed = with_header(packed, {"stretches": spans})
        asked = component.show(packed, key="timeline")
        if asked.arm is not None and can_be_cut:
            stretches.add(choice, asked.arm)
            st.rerun(scope="fragment")  # the canvas shows it too
        if can_be_cut:
            stretches.controls(choice, trace_root.trace_root())
        if asked.windows is not None and asked.windows != windows:
            st.session_state["_windows"], st.session_state["_windows_of"] = asked.windows, shown
            st.rerun(scope="fragment")


def lanes(choice: Choice, shown: list[passes.ShownPass]) -> None:
    """How busy each lane was, as a heatmap and as a table."""
    st.header("How busy each lane was", anchor=False)
    figure, frames = passes.busy(choice, shown)
    lines = passes.lines(choice, shown)
    show.figure(
        figure,
        alt="heatmap of the busy share of every lane over time; the table gives each lane's total",
        key="busy",
        table=_lane_table(lines, frames, [one.title for one in shown]),
        name="lanes",
    )


def _lane_table(lines: Sequence[Timeline], frames: Sequence[pd.DataFrame], titles: Sequence[str]) -> pd.DataFrame:
    """A row a lane of each pass, in the same units for all."""
    found = pd.concat(frames, ignore_index=True)
    names = [
        (title, lane_title(lane, line.lanes)) for line, title in zip(lines, titles, strict=True) for lane in line.lanes
    ]
    told = pd.DataFrame(names, columns=["pass", "lane"]).assign(events=found["events"])
    times = in_one_unit({"busy": found["busy_ns"], "exposed": found["exposed_ns"]}, "ns")
    sizes = in_one_unit({"bytes": found["bytes"]}, "bytes") | in_one_unit({"speed while busy": found["gb_s"]}, "GB/s")
    return told.assign(**times, **sizes)


main(current())
