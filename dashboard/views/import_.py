"""Import: other tools' traces become a capture, from uploads or files that lie in the trace root; several as arms."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from dashboard import trace_root
from dashboard.text import escape_markdown
from dashboard.trace_root import TraceFile, Upload
from executor.errors import HprofError
from executor.units import format_bytes
from profiler.importers.base import without_ending
from profiler.plain_text import readable

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


def chosen() -> list[Upload | TraceFile]:
    """What was uploaded and picked, in that order."""
    limit = st.get_option("server.maxUploadSize")
    uploaded = st.file_uploader(
        f"Trace files, at most {limit:,} MiB each (they are held in memory while they are read)",
        type=trace_root.ENDINGS,
        accept_multiple_files=True,
        key="upload",
    )
    lying = trace_root.files_in(root)
    picked = st.multiselect(
        f"Or traces that lie in {escape_markdown(root.url)}, of any size",
        lying,
        key="pick",
        format_func=lambda file: f"{readable(file.name)} ({format_bytes(file.size)})",
        placeholder="Choose files" if lying else "There are none there",
        disabled=not lying,
    )
    return [*(Upload(file.name, file) for file in uploaded), *picked]


def arm_names(sources: Sequence[Upload | TraceFile]) -> list[str]:
    """An arm's name for each file, the first being the baseline."""
    st.markdown("**Arms**, the first is the baseline:")
    return [
        st.text_input(
            escape_markdown(readable(source.name)),
            without_ending(trace_root.safe_name(source.name)),
            key=f"arm-{number}",
        ).strip()
        for number, source in enumerate(sources)
    ]


def bring(sources: Sequence[Upload | TraceFile], arms: Sequence[str]) -> None:
    """Read them, and open the new capture."""
    try:
        with st.spinner("Reading the traces …"):
            name = trace_root.import_traces(root, sources, arms)
    except HprofError as error:
        st.error(escape_markdown(error), icon=":material/error:")
    else:
        st.query_params.clear()
        st.switch_page("views/overview.py", query_params={"capture": name})


main()
