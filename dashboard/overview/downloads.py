"""The whole report, as files."""

from __future__ import annotations

import orjson
import streamlit as st

from dashboard import passes, show
from dashboard.choice import Choice


def downloads(choice: Choice) -> None:
    """Buttons that make the report in each format when they are pressed."""
    st.subheader("Take it along", anchor=False)
    with st.container(horizontal=True, gap="small"):
        name = choice.found.name
        show.download(
            "Report, JSON",
            lambda: orjson.dumps(choice.whole_report.to_json(), option=orjson.OPT_INDENT_2),
            f"{name}.json",
            "application/json",
            "report-json",
        )
        show.download("Report, HTML", lambda: passes.html_report(choice), f"{name}.html", "text/html", "report-html")
        show.download("Report, Markdown", lambda: _markdown(choice), f"{name}.md", "text/markdown", "report-markdown")


def _markdown(choice: Choice) -> bytes:
    from profiler.report.markdown import render_markdown

    return render_markdown(choice.whole_report).encode()
