"""Import: other tools' traces become a capture, from uploads or files that lie in the trace root; several as arms."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import streamlit as st

from dashboard import address, load, show, trace_root
from dashboard.text import escape_markdown
from dashboard.trace_root import TraceFile, Upload
from executor.errors import HprofError
from executor.units import format_bytes
from profiler.cli.printing import console
from profiler.importers.base import without_ending
from profiler.plain_text import readable
from profiler.report.terminal import print_answer

_IMPORTED: Final = "_imported"
_WIDTH: Final = 100  # characters of a line of the summary

root = trace_root.trace_root()


def main() -> None:
    st.title("Import", anchor=False)
    st.markdown(
        "Add traces of other tools: **Nsight Systems** exports (`.sqlite`), **torch.profiler** traces (`.json`, "
        "`.json.gz`) or **llama-bench** output (`.json`, `.jsonl`, `.csv`, `.md`, `.sql`). Their content says which "
        "they are. Several files become the arms of one capture."
    )
    sources = chosen()
    arms = arm_names(sources) if len(sources) > 1 else []
    if len(set(arms)) < len(arms) or not all(arms):
        st.warning("Give each file an arm of its own name.", icon=":material/warning:")
    elif st.button("Import", type="primary", disabled=not sources):
        bring(sources, arms)
    if (name := st.session_state.get(_IMPORTED)) is not None:
        show_imported(name)


def chosen() -> list[Upload | TraceFile]:
    """What was uploaded and picked, in that order."""
    uploaded = st.file_uploader(  # which tells its own limit of a file's size
        "Trace files (they are held in memory while they are read)",
        type=trace_root.ENDINGS,
        accept_multiple_files=True,
        key="upload",
    )
    lying = trace_root.files_in(root)
    picked = st.multiselect(
        "Or traces that lie in the trace folder, of any size",
        lying,
        key="pick",
        format_func=lambda file: f"{readable(file.name)} ({format_bytes(file.size)})",
        placeholder="Choose files" if lying else "There are none there",
        disabled=not lying,
        help=escape_markdown(root.url),
    )
    return [*(Upload(file.name, file) for file in uploaded), *picked]


def arm_names(sources: Sequence[Upload | TraceFile]) -> list[str]:
    """An arm's name for each file, the first being the baseline."""
    st.markdown("**Arms**, the first is the baseline:")
    return [
        show.text_box(source.name, without_ending(trace_root.safe_name(source.name)), key=f"arm-{number}")
        for number, source in enumerate(sources)
    ]


def bring(sources: Sequence[Upload | TraceFile], arms: Sequence[str]) -> None:
    """Read them into a new capture."""
    st.session_state.pop(_IMPORTED, None)
    try:
        with st.spinner("Reading the traces …"):
            st.session_state[_IMPORTED] = trace_root.import_traces(root, sources, arms)
    except HprofError as error:
        st.error(escape_markdown(error), icon=":material/error:")
    else:
        st.rerun()  # the list on the left has it then


def show_imported(name: str) -> None:
    """Where to look at what was imported last, and what `hprof import` says of it."""
    st.success(f"Imported as {escape_markdown(name)}.", icon=":material/check:")
    query = {"capture": name} | address.JUMP
    with st.container(horizontal=True, gap="small"):
        st.page_link("views/overview.py", label="Overview of it", icon=":material/query_stats:", query_params=query)
        st.page_link("views/timeline.py", label="Timeline of it", icon=":material/view_timeline:", query_params=query)
    with show.one_sentence():
        st.code(_summary(trace_root.find_capture(root, name)), language=None, wrap_lines=True)


def _summary(found: trace_root.CaptureRef) -> str:
    """The answer, as `hprof import` prints it."""
    told = io.StringIO()
    report = replace(load.report(found), capture=found.name, findings=load.findings(found))
    print_answer(report, console(file=told, width=_WIDTH))
    return told.getvalue()


main()
