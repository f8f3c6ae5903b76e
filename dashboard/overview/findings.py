"""The Overview's findings: what the capture shows that someone should change, with its warnings and notes."""

from __future__ import annotations

from typing import Any, Final

import streamlit as st

from dashboard import load
from dashboard.choice import Choice
from dashboard.text import escape_markdown
from profiler.findings import Finding

_FINDINGS_SHOWN: Final = 4
_SEVERITIES: Final[dict[str, tuple[str, Any]]] = {
    "serious": (":material/error:", "red"),
    "warning": (":material/warning:", "orange"),
    "info": (":material/info:", "blue"),
}


def findings(choice: Choice) -> None:
    """The findings of the whole capture, and its warnings and notes."""
    st.subheader("Findings", anchor=False)
    found = load.findings(choice.found)
    if found and choice.sizes is not None:
        st.caption("Over all passes, arms and cells of the capture together.")
    if choice.sizes is None and choice.report.source == "hprof":
        st.markdown("No measured pass was completed, so nothing was looked for.")
    elif not choice.report.devices:
        st.markdown("Without recorded copies and kernels there is nothing to look for.")
    elif not found:
        st.markdown("Nothing to fix was found: no pageable or serial copies, no late prefetch, no long gaps.")
    for finding in found[:_FINDINGS_SHOWN]:
        _show_finding(finding)
    if rest := found[_FINDINGS_SHOWN:]:
        with st.expander(f"{len(rest)} more"):
            for finding in rest:
                _show_finding(finding)
    _warnings([*choice.report.warnings, *choice.report.notes])


def _show_finding(finding: Finding) -> None:
    icon, colour = _SEVERITIES[finding.severity]
    with st.container(border=True):
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            st.badge(finding.severity, icon=icon, color=colour)
            st.markdown(f"**{escape_markdown(finding.rule.replace('-', ' ').capitalize())}**")
        st.markdown(escape_markdown(finding.evidence))
        st.caption(escape_markdown(finding.advice))


def _warnings(sentences: list[str]) -> None:
    with st.expander(f"Warnings and notes ({len(sentences)})"):
        for sentence in sentences or ["None."]:
            st.markdown(f"- {escape_markdown(sentence)}")
