"""The dashboard's entry, which `hprof dashboard` runs under Streamlit. The state of every page is in the address.

Pages are files in views/: a folder called pages/ would make Streamlit run them by address, without this file.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import streamlit as st

from dashboard import choice, show, trace_root
from dashboard.empty_pages import why_empty
from executor.errors import HprofError

HERE = Path(__file__).parent

# A file of ours, and before the navigation: Streamlit would fetch a page's named icon from the internet.
st.set_page_config(page_title="hprof", page_icon=str(HERE / "icon.png"), layout="wide")
st.html(HERE / "style.css")

nothing_on: dict[str, str] = {}
is_chosen = False
with show.one_sentence():
    with st.sidebar:
        chosen = choice.choose(trace_root.trace_root())
    is_chosen = True
    if chosen is not None:
        with suppress(HprofError, OSError, pa.ArrowException):  # what cannot be read, the page that wants it says
            nothing_on = why_empty(chosen)


def _page(file: str, title: str, icon: str, url_path: str = "") -> st.Page:
    """A page; one that has nothing for the capture says so where the pointer rests on its name."""
    return st.Page(
        f"views/{file}.py",
        title=title,
        icon=f":material/{icon}:",
        url_path=url_path or None,
        default=not url_path,
        help=nothing_on.get(url_path),
    )


page = st.navigation(
    {
        "Compare": [
            _page("overview", "Overview", "monitoring"),
            _page("timeline", "Timeline", "view_timeline", "timeline"),
            _page("sweep", "Sweep", "stacked_line_chart", "sweep"),
        ],
        "Explain": [
            _page("selective", "Selective copy", "filter_alt", "selective"),
            _page("layers", "Layers", "layers", "layers"),
            _page("memory", "Memory", "memory", "memory"),
        ],
        "Predict": [
            _page("what_if", "What if", "tune", "what-if"),
            _page("advise", "Advise", "lightbulb", "advise"),
        ],
        "Add": [_page("import_", "Import", "upload_file", "import")],
    }
)
st.set_page_config(page_title=f"{page.title} · hprof")
if nothing_on:
    names = ", ".join(f"[data-testid=stSidebarNav] a[href$='/{url}']" for url in nothing_on)  # addresses of ours
    st.html(f"<style>:is({names}) {{ opacity: 0.5; }}</style>")

if is_chosen:
    with show.one_sentence():
        page.run()
