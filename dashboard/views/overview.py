"""Overview: did prefetch help, by how much, and where did the time go."""

from __future__ import annotations

from typing import Any, Final

import streamlit as st

from dashboard import answers, load, overview, show
from dashboard.choice import Choice, current
from dashboard.figures.spent import PART_LABELS, spent_figure
from dashboard.text import headline, plain
from profiler.findings import Finding
from profiler.metrics.spent import time_spent
from profiler.report.data import Cell
from profiler.report.on_host import products_line
from profiler.report.tables import cell_title
from profiler.report.units import format_ns

_SHOWN: Final = 4
_SEVERITIES: Final[dict[str, tuple[str, Any]]] = {
    "serious": (":material/error:", "red"),
    "warning": (":material/warning:", "orange"),
    "info": (":material/info:", "blue"),
}


def main(choice: Choice) -> None:
    if choice.sizes is None:
        without_passes(choice)
    else:
        with_passes(choice)
    place = st.container()  # looked for last: on large captures it takes longest
    differences(choice)
    overview.downloads(choice)
    with place:
        findings(choice)


def with_passes(choice: Choice) -> None:
    cell, a, b = choice.headline_cell, choice.a, choice.b
    assert a is not None
    title = headline(a, b, cell.against_baseline.get(b, {})) if b else f"One arm, {a}: nothing to compare it with yet."
    show.head(plain(title), choice)
    badges(cell)
    told, place, note = st.empty(), st.empty(), st.empty()
    if choice.is_large:
        with place.container():
            missing = overview.cards(choice, cell)
        coming = ", ".join([*missing, "where the time went"])
        note.caption(plain(f"Reading {load.n_events(choice.found):,} events for the rest: {coming} …"))
    cell = choice.cell
    with told.container():
        in_words(choice, cell)
    with place.container():
        missing = overview.cards(choice, cell)
    note.empty()
    lines = [*overview.missing_line(missing), overview.reasons_line(choice, cell), products_line(choice.arms_of_cell)]
    show.sentences([*(line for line in lines if line), *(() if differ(cell) else cell.notes)])
    with st.expander("All figures of this cell", expanded=False):
        show.table(overview.figure_table(choice), alt="every figure of both arms", key="figures", name="figures")
        st.caption(f"To run this cell again: `hprof run {cell_title(cell)}`")
    where_time_went(choice)


def in_words(choice: Choice, cell: Cell) -> None:
    """From which ubatch B helps, what it costs, and why."""
    if choice.a is None or choice.b is None:
        return
    told = {
        "From which ubatch": answers.from_which_size(choice.report.cells, cell, choice.a, choice.b),
        "What it costs": answers.cost(cell, choice.a, choice.b, choice.report.residency),
        "Why": answers.why(cell, choice.a, choice.b),
    }
    st.markdown("  \n".join(f"**{question}:** {plain(answer)}" for question, answer in told.items() if answer))


def badges(cell: Cell) -> None:
    """Whether the arms computed the same thing."""
    with st.container(horizontal=True, gap="small"):
        _badge(cell.same_tokens, "same tokens", "tokens differ")
        _badge(cell.bit_identical, "logits bit-identical", "logits differ")
    if differ(cell):
        show.sentences(cell.notes)


def differ(cell: Cell) -> bool:
    """Whether the arms are known not to have computed the same thing: then the notes on it come first."""
    return cell.same_tokens is False or cell.bit_identical is False


def _badge(holds: bool | None, yes: str, no: str) -> None:
    if holds:
        st.badge(yes, icon=":material/check:", color="green")
    elif holds is not None:
        st.badge(no, icon=":material/warning:", color="orange")


def where_time_went(choice: Choice) -> None:
    st.subheader("Where the time went", anchor=False)
    passes = overview.measured_passes(choice)
    spent = time_spent(passes, max(len(choice.report.devices), 1)).groupby(passes["arm"]).mean().reindex(choice.arms)
    if spent[["compute_ns", "hidden_ns", "exposed_ns"]].isna().all(axis=None):
        show.nothing("The source recorded no copies or kernels of these passes, so where their time went is unknown.")
        return
    labels = [f"{letter}  {arm}" for letter, arm in zip("AB", choice.arms, strict=False)]
    texts = spent.map(lambda value: format_ns(value) if value == value else "–").T
    texts.columns = labels
    texts.insert(0, "part", [PART_LABELS[part] for part in spent.columns])
    counts = passes["arm"].value_counts()
    show.figure(
        spent_figure(spent, labels),
        alt=overview.spent_alt(spent, labels),
        key="spent",
        table=texts,
        name="where-the-time-went",
        beside=True,
    )
    over = " and ".join(f"{counts.get(arm, 0)} passes of {plain(arm)}" for arm in choice.arms)
    st.caption(f"Means over {over}, prefill and decode together.")


def without_passes(choice: Choice) -> None:
    if choice.report.source == "hprof":
        show.head("No completed pass yet", choice)
        show.nothing(
            "This run has not finished its first pass, or was killed before it did.", "Come back, or run it again."
        )
        return
    show.head("What the trace shows", choice)
    st.markdown(f"#### {plain(choice.report.summary)}")
    if choice.report.devices:
        overview.device_cards(choice)
        overview.device_time(choice)
    else:
        show.nothing("The trace holds no copy and no kernel on a device.")
    if choice.report.cannot_say:
        with st.expander("What this source cannot say"):
            for sentence in choice.report.cannot_say:
                st.markdown(f"- {plain(sentence)}")


def findings(choice: Choice) -> None:
    st.subheader("Findings", anchor=False)
    found = load.findings(choice.found)
    if found and choice.sizes is not None:
        st.caption("Over all arms and cells of the capture: figures are a pass's, in the cell where it matters most.")
    if not choice.report.devices:
        st.markdown("Without recorded copies and kernels there is nothing to look for.")
    elif not found:
        st.markdown("Nothing to fix was found: no pageable or serial copies, no late prefetch, no long gaps.")
    first, rest = found[:_SHOWN], found[_SHOWN:]
    for finding in first:
        show_finding(finding)
    if rest:
        with st.expander(f"{len(rest)} more"):
            for finding in rest:
                show_finding(finding)
    with st.expander(f"Warnings and notes ({len(choice.report.warnings) + len(choice.report.notes)})"):
        for sentence in [*choice.report.warnings, *choice.report.notes] or ["None."]:
            st.markdown(f"- {plain(sentence)}")


def show_finding(finding: Finding) -> None:
    icon, colour = _SEVERITIES[finding.severity]
    with st.container(border=True):
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            st.badge(finding.severity, icon=icon, color=colour)
            st.markdown(f"**{plain(finding.rule.replace('-', ' ').capitalize())}**")
        st.markdown(plain(finding.evidence))
        st.caption(plain(finding.advice))


def differences(choice: Choice) -> None:
    st.subheader("Configuration", anchor=False)
    differing, common = overview.configuration(choice)
    if choice.b is not None:
        if differing.empty:
            st.markdown("The arms were asked for in the same way but for their names.")
        else:
            show.table(differing, alt="settings in which A and B differ", key="differing", name="differing-settings")
    what = "What both arms share: machine" if choice.b is not None else "Machine"
    with st.expander(f"{what}, model, placement, seeds"):
        show.table(common, alt="settings that A and B share", key="common", name="shared-settings")


main(current())
