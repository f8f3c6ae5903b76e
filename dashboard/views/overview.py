"""Overview: did prefetch help, by how much, and where did the time go. Below: what to change, in which settings A
and B differ, and the report as files.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import streamlit as st

from dashboard import address, load, passes, show
from dashboard.choice import Choice, current
from dashboard.overview import answers
from dashboard.overview.cards import (
    PRICES,
    absent_line,
    card,
    figure_table,
    known_figures,
    printed_figures,
    reasons_lines,
)
from dashboard.overview.findings import findings
from dashboard.overview.ranking import all_arms, ranking
from dashboard.overview.settings import differences
from dashboard.overview.spent import device_cards, device_time, where_time_went
from dashboard.placements import OtherPlacement
from dashboard.text import escape_markdown, headline
from executor.units import format_count
from profiler.metrics import SPEEDS
from profiler.report.cells import Cell
from profiler.report.from_which_size import from_which_size
from profiler.report.residency import products_line
from profiler.report.shown_cells import printed_figure


def main(choice: Choice) -> None:
    if choice.sizes is None:
        without_passes(choice)
    else:
        with_passes(choice)
    place = st.container()  # looked for last: on large captures it takes longest
    differences(choice)
    downloads(choice)
    with place:
        findings(choice)


def with_passes(choice: Choice) -> None:
    cell, a, b = choice.headline_cell, choice.a, choice.b
    assert a is not None
    apart = choice.other_placement
    placed = (apart.a, apart.b) if apart else None
    title = f"One arm, {a}: nothing to compare it with yet."
    if b:
        compared = cell.against_baseline.get(b, {})
        printed = printed_figure(cell)
        led_by = None if printed is None else (printed, cell.readings[printed])
        title = headline(a, b, choice.b_as_subject, compared, placed, led_by)
    show.head(escape_markdown(title).replace(" %", "\N{NO-BREAK SPACE}%"), choice)
    if apart:
        say_apart(apart)
    if cell.faults:
        badges(cell)  # before any time: such times are not to be trusted
    ranking(choice, cell)
    first, told, rest, note = (st.empty() for _ in range(4))
    if choice.is_large:
        with first.container():
            speeds(choice, cell, ())
        with rest.container():
            row_of_cards(choice, cell, ())
        note.caption(f"Reading {load.n_events(choice.found):,} events for where the time went and all that it cost …")
    cell, cells = choice.cell, choice.report.cells
    with first.container():
        speeds(choice, cell, cells)
    with told.container():
        in_words(choice, cell)
    with rest.container():
        row_of_cards(choice, cell, cells)
    note.empty()
    if not cell.faults:
        badges(cell)
    lines = [*absent_line(choice, cell), *reasons_lines(choice, cell), products_line(choice.arms_of_cell)]
    show.sentences([*(line for line in lines if line), *(() if cell.faults else cell.notes)])
    all_arms(choice, cell)
    with st.expander("All figures of this cell", expanded=False):
        show.table(figure_table(choice), alt="every figure of both arms", key="figures", name="figures")
        if any(size is not None for size in (cell.n_prompt, cell.n_gen, cell.n_ubatch, cell.n_depth)):
            st.caption(f"This cell alone, beside the other options of the run: `{cell.flags}`")


def speeds(choice: Choice, cell: Cell, cells: Sequence[Cell]) -> None:
    """How fast, and beside it where the time went, once that is known."""
    left, right = st.columns([5, 6], gap="medium")
    with left:
        for name in [*printed_figures(choice, cell), *known_figures(choice, cell, SPEEDS)]:
            card(choice, cell, name, cells)
    if cells:
        with right:
            where_time_went(choice)


def row_of_cards(choice: Choice, cell: Cell, cells: Sequence[Cell]) -> None:
    """What it costs, side by side."""
    known = known_figures(choice, cell, PRICES)
    for name, column in zip(known, st.columns(len(known), gap="small") if known else (), strict=True):
        with column:
            card(choice, cell, name, cells)


def say_apart(apart: OtherPlacement) -> None:
    """That the placements differ, and a button to the pair that differs in the policy alone."""
    st.warning(escape_markdown(apart.sentence), icon=":material/warning:")
    if apart.alike:
        a, b = apart.alike
        st.button(
            escape_markdown(f"Compare {b} with {a}, of the same placement"),
            on_click=address.put,
            kwargs={"a": a, "b": b},
        )


def in_words(choice: Choice, cell: Cell) -> None:
    """From which ubatch B helps, what it costs, and why."""
    if choice.a is None or choice.b is None:
        return
    over = from_which_size(choice.report.cells, cell, choice.a, choice.b)
    told = {
        "From which ubatch": over.sentence(choice.b_as_subject) if over is not None else None,
        "What it costs": answers.cost(
            cell, choice.a, choice.b, choice.report.residency, same_placement=choice.other_placement is None
        ),
        "Why": answers.why(cell, choice.a, choice.b),
    }
    st.markdown(
        "  \n".join(f"**{question}:** {escape_markdown(answer)}" for question, answer in told.items() if answer)
    )


def badges(cell: Cell) -> None:
    """Whether the arms computed the same thing."""
    with st.container(horizontal=True, gap="small"):
        if cell.same_tokens is False and not cell.faults:
            st.badge("tokens differ where arms compute in other places", color="gray")
        else:
            _badge(cell.same_tokens, "same tokens", "tokens differ")
        _badge(cell.bit_identical, "logits bit-identical", "logits differ")
    if cell.faults:
        show.sentences([*cell.faults, *cell.notes])


def _badge(holds: bool | None, yes: str, no: str) -> None:
    if holds:
        st.badge(yes, icon=":material/check:", color="green")
    elif holds is not None:
        st.badge(no, icon=":material/warning:", color="orange")


def without_passes(choice: Choice) -> None:
    if choice.report.source == "hprof":
        show.head("No measured pass yet", choice)
        reason = "This run has not finished its first pass, or was killed before it did."
        if warmups := choice.capture.n_passes:
            done = format_count(warmups, "pass")
            reason = f"All that was completed is {done} for warming up, which measures nothing."
        show.nothing(reason, "Come back, or run it again.")
        return
    show.head("What the trace shows", choice)
    st.markdown(f"**{escape_markdown(choice.report.summary)}**")
    if choice.report.devices:
        device_cards(choice)
        device_time(choice)
    else:
        show.nothing("The trace holds no copy and no kernel on a device.")
    if choice.report.cannot_say:
        with st.expander("What this source cannot say"):
            for sentence in choice.report.cannot_say:
                st.markdown(f"- {escape_markdown(sentence)}")


def downloads(choice: Choice) -> None:
    """Buttons that make the report in each format when they are pressed."""
    st.header("Take it along", anchor=False)
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
        show.download(
            "Report, Markdown", lambda: _markdown_report(choice), f"{name}.md", "text/markdown", "report-markdown"
        )


def _markdown_report(choice: Choice) -> bytes:
    from profiler.report.markdown import render_markdown

    return render_markdown(choice.whole_report).encode()


main(current())
