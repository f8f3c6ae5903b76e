"""The dashboard's entry, which `hprof dashboard` runs under Streamlit. The state of every page is in the address.

Pages are files in views/: a folder called pages/ would make Streamlit run them by address, without this file.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from dashboard import choice, show, trace_root

HERE = Path(__file__).parent

# A file of ours, and before the navigation: Streamlit would fetch a page's named icon from the internet.
st.set_page_config(page_title="hprof", page_icon=str(HERE / "icon.png"), layout="wide")
st.html(HERE / "style.css")

page = st.navigation(
    {
        "Compare": [
            st.Page("views/overview.py", title="Overview", icon=":material/monitoring:", default=True),
            st.Page("views/timeline.py", title="Timeline", icon=":material/view_timeline:", url_path="timeline"),
            st.Page("views/sweep.py", title="Sweep", icon=":material/stacked_line_chart:", url_path="sweep"),
        ],
        "Explain": [
            st.Page("views/selective.py", title="Selective copy", icon=":material/filter_alt:", url_path="selective"),
            st.Page("views/layers.py", title="Layers", icon=":material/layers:", url_path="layers"),
            st.Page("views/memory.py", title="Memory", icon=":material/memory:", url_path="memory"),
            st.Page("views/what_if.py", title="What if", icon=":material/tune:", url_path="what-if"),
        ],
        "Add": [st.Page("views/import_.py", title="Import", icon=":material/upload_file:", url_path="import")],
    }
)

st.set_page_config(page_title=f"{page.title} · hprof")

with show.one_sentence():
    with st.sidebar:
        choice.choose(trace_root.trace_root())
    page.run()
