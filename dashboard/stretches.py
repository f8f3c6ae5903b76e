"""Stretches of an imported trace that become arms: chosen on the timeline, listed below it, made into a capture."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

import streamlit as st

from dashboard import address, show, trace_root
from dashboard.choice import Choice
from executor.units import format_ns
from profiler.importers.cut import ArmRange

_STATE: Final = "_stretches"
_NAMES: Final = ("off", "on")
Span = tuple[int, int]


def can_be_cut(choice: Choice) -> bool:
    """Whether the capture is an imported trace that names no arms: its whole timeline is on show."""
    return choice.sizes is None and choice.capture.manifest.source != "hprof"


def chosen(choice: Choice) -> list[Span]:
    """The stretches of this capture that were chosen so far, in order, ns on its clock."""
    kept: tuple[bytes, list[Span]] = st.session_state.get(_STATE, (b"", []))
    return kept[1] if kept[0] == choice.found.key else []


def add(choice: Choice, span: Span) -> None:
    """One more."""
    st.session_state[_STATE] = choice.found.key, with_span(chosen(choice), span)


def with_span(spans: Sequence[Span], span: Span) -> list[Span]:
    """The spans with one more, in order. It takes the place of those inside or around it, and ends where others that it
    runs into begin: a hand does not hit the edge.
    """
    begin, end = max(span[0], 0), span[1]
    others = [(a, b) for a, b in spans if not (begin <= a and b <= end) and not (a <= begin and end <= b)]
    begin = max([begin, *(b for a, b in others if a < begin)])
    end = min([end, *(a for a, b in others if b > end)])
    return sorted([*others, (begin, end)]) if begin < end else sorted(others)


def _remove(choice: Choice, span: Span) -> None:
    st.session_state[_STATE] = choice.found.key, [one for one in chosen(choice) if one != span]


def on_canvas(choice: Choice) -> list[tuple[int, int, str]]:
    """The stretches with the names that they have now, for the canvas to show where they lie."""
    return [(*span, _name(number, span)) for number, span in enumerate(chosen(choice))]


def _name(number: int, span: Span) -> str:
    """What is in its box, or will be."""
    return str(st.session_state.get(_key(span), _NAMES[number % len(_NAMES)])).strip()


def _key(span: Span) -> str:
    return f"stretch-{span}"


def controls(choice: Choice, root: trace_root.TraceRoot) -> None:
    """The list with a name for each, and the button that makes the capture; nothing where none was chosen."""
    spans = chosen(choice)
    if not spans:
        return
    st.subheader("Arms", anchor=False)
    st.caption("The first is the baseline. Stretches of one name are repetitions of that arm.")
    ranges = [_row(choice, number, span) for number, span in enumerate(spans)]
    if not all(one.arm for one in ranges):
        st.warning("Give each stretch an arm's name.", icon=":material/warning:")
        return
    command = ["hprof", "import", choice.found.name, *(word for one in ranges for word in ("--range", one.option))]
    if st.button("Make a capture of these arms", type="primary"):
        with show.one_sentence(), st.spinner("Cutting the trace …"):
            name = trace_root.cut_into_arms(root, choice.found, ranges, command)
            st.session_state.pop(_STATE)
            st.switch_page("views/overview.py", query_params={"capture": name} | address.JUMP)
    st.caption("The same in a shell:")
    st.code(shlex.join(command), language="bash")


def _row(choice: Choice, number: int, span: Span) -> ArmRange:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        label = f"{format_ns(span[0])} to {format_ns(span[1])}"
        name = st.text_input(label, _NAMES[number % len(_NAMES)], key=_key(span), width=260)
        st.button("Remove", key=f"remove-{span}", on_click=_remove, args=(choice, span))
    return ArmRange(name.strip(), *span)
