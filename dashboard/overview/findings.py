"""The Overview's findings: what the capture shows that someone should change, with its warnings and notes."""

from __future__ import annotations

import re
from typing import Final

import streamlit as st

from dashboard import load, moments
from dashboard.choice import Choice
from dashboard.text import escape_markdown, with_code
from executor.units import shortened
from profiler.findings import Finding

_FINDINGS_SHOWN: Final = 5
_LINE: Final = 110  # characters of the evidence that stand in the line
_WHERE: Final = re.compile(r"(?:Arm|GPU|Device|The GPU|The device)\b")
_LEFT_OUT: Final = ("a pass (", "in its only pass", "over the trace")  # how it was counted: the unfolded text says it
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
    label = f"**{escape_markdown(name)}** ({finding.severity}): {escape_markdown(in_a_line(finding))}"
    with st.expander(label, icon=_ICONS[finding.severity]):
        st.markdown(with_code(finding.evidence))
        st.markdown(with_code(finding.advice))
        for label, query in moments.links(choice, finding):
            st.page_link("views/timeline.py", label=escape_markdown(label), query_params=query)


def in_a_line(finding: Finding) -> str:
    """`idle for 393 ms of 701 ms (56.1 %) · off, -ub 2048, GPU 0`: what was seen first, and where; cut between clauses,
    for the whole evidence is below it.
    """
    where, colon, what = finding.evidence.partition(": ")
    if not colon or not _WHERE.match(where):
        where, what = "", finding.evidence
    words = [word for word in where.split(", ") if word and not word.startswith(_LEFT_OUT)]
    at = ", ".join(word.removeprefix("Arm ").partition(" (the worst of ")[0] for word in words)
    others = f", and {len(finding.moments) - 1} more" if len(finding.moments) > 1 else ""
    return f"{_first_clauses(what)}{f' · {at}{others}' if at else ''}"


def _first_clauses(text: str) -> str:
    """As many whole clauses as fit in a line, at least one; a clause that is longer is cut."""
    sentence = text.partition("; ")[0].partition(". ")[0].rstrip(".")
    ends = [found.start() for found in re.finditer(r"(?:, |: )", sentence)]
    if len(sentence) <= _LINE:
        return sentence
    fitting = [end for end in ends if end <= _LINE]
    return sentence[: fitting[-1]] if fitting else shortened(sentence, _LINE)


def _warnings(sentences: list[str]) -> None:
    with st.expander(f"Warnings and notes ({len(sentences)})"):
        for sentence in sentences or ["None."]:
            st.markdown(f"- {with_code(sentence)}")
