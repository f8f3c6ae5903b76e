"""The Overview's findings: what the capture shows that someone should change, with its warnings and notes."""

from __future__ import annotations

from typing import Final

import streamlit as st

from dashboard import load, moments
from dashboard.choice import Choice
from dashboard.text import escape_markdown, with_code
from profiler.findings import Finding

_FINDINGS_SHOWN: Final = 5
_LINE: Final = 130  # characters of the evidence that stand in the line
_ICONS: Final = {"serious": ":material/error:", "warning": ":material/warning:", "info": ":material/info:"}


def findings(choice: Choice) -> None:
    """The findings of the whole capture, and its warnings and notes."""
    st.header("Findings", anchor=False)
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
        _show_finding(choice, finding)
    rest = found[_FINDINGS_SHOWN:]
    for finding in rest if rest and st.toggle(f"{len(rest)} more", key="more-findings") else ():
        _show_finding(choice, finding)
    _warnings([*choice.report.warnings, *choice.report.notes])


def _show_finding(choice: Choice, finding: Finding) -> None:
    """A line that unfolds: what was seen, what to do, and the way to the timeline."""
    name = finding.rule.replace("-", " ").capitalize()
    evidence = finding.evidence if len(finding.evidence) <= _LINE else f"{finding.evidence[: _LINE - 1]}…"
    label = f"**{escape_markdown(name)}** ({finding.severity}): {escape_markdown(evidence)}"
    with st.expander(label, icon=_ICONS[finding.severity]):
        st.markdown(with_code(finding.evidence))
        st.markdown(with_code(finding.advice))
        for label, query in moments.links(choice, finding):
            st.page_link("views/timeline.py", label=escape_markdown(label), query_params=query)


def _warnings(sentences: list[str]) -> None:
    with st.expander(f"Warnings and notes ({len(sentences)})"):
        for sentence in sentences or ["None."]:
            st.markdown(f"- {with_code(sentence)}")
