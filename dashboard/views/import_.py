"""Import: turn another tool's trace into a capture, from an upload or a file that lies in the trace root."""

from __future__ import annotations

import streamlit as st

from dashboard import trace_root
from dashboard.text import escape_markdown
from executor.errors import HprofError
from executor.units import format_bytes
from profiler.plain_text import readable

root = trace_root.trace_root()
st.title("Import", anchor=False)
st.markdown(
    "Bring a trace of another tool: an **Nsight Systems** export (`.sqlite`), a **torch.profiler** trace (`.json`, "
    "`.json.gz`) or **llama-bench** output (`.json`, `.jsonl`, `.csv`, `.md`, `.sql`). Its content says which it is."
)
limit = st.get_option("server.maxUploadSize")
uploaded = st.file_uploader(
    f"A trace file, at most {limit:,} MB (it is held in memory while it is read)", type=trace_root.ENDINGS, key="upload"
)
lying = trace_root.files_in(root)
picked = st.selectbox(
    f"Or a trace that lies in {escape_markdown(root.url)}, of any size",
    lying,
    index=None,
    key="pick",
    format_func=lambda file: f"{readable(file.name)} ({format_bytes(file.size)})",
    placeholder="Choose a file" if lying else "There is none there",
    disabled=not lying,
)
if st.button("Import", type="primary", disabled=uploaded is None and picked is None):
    try:
        with st.spinner("Reading the trace …"):
            if uploaded is not None:
                name = trace_root.import_upload(root, uploaded.name, uploaded)
            else:
                name = trace_root.import_lying(root, picked)
    except HprofError as error:
        st.error(escape_markdown(error), icon=":material/error:")
    else:
        st.query_params.clear()
        st.switch_page("views/overview.py", query_params={"capture": name})
