"""Controls whose choice is kept in the address, so that a view can be sent to somebody.

Streamlit's own binding writes the labels that people read; here the address holds the plain values. What the address
says counts only if it is one of the options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import streamlit as st

Option = TypeVar("Option")

_PREFIX: Final = "address-"
JUMP: Final = {"jump": "1"}
"""Part of a link inside the app that chooses anew: what the address says then counts before what was chosen."""


def select(
    title: str,
    options: Sequence[Option],
    key: str,
    label: Callable[[Option], str] = str,
    *,
    first: int = 0,
    **layout: Any,
) -> Option:
    """A box to choose one of the options from."""
    widget = _prepare(options, key, options[first])
    chosen = st.selectbox(title, options, key=widget, format_func=label, **layout)
    return _remember(key, options[first] if chosen is None else chosen)


def segments(
    title: str,
    options: Sequence[Option],
    key: str,
    label: Callable[[Option], str] = str,
    *,
    first: int = 0,
    **layout: Any,
) -> Option:
    """Buttons in a row to choose one of the options with."""
    if len(options) == 1:
        return _remember(key, options[0])
    widget = _prepare(options, key, options[first])
    chosen = st.segmented_control(title, options, key=widget, format_func=label, required=True, **layout)
    return _remember(key, options[first] if chosen is None else chosen)


def kept(options: Sequence[Option], key: str, *, first: int = 0) -> Option:
    """The option that the address names, without a control of its own: other controls `put` it."""
    chosen: Option = st.session_state[_prepare(options, key, options[first])]
    return _remember(key, chosen)


def follow_jump() -> None:
    """Forget what was chosen where a link leads elsewhere; called before any control is drawn."""
    if all(st.query_params.get(name) == value for name, value in JUMP.items()):
        for name in JUMP:
            del st.query_params[name]
        for name in [str(name) for name in st.session_state if str(name).startswith(_PREFIX)]:
            del st.session_state[name]


def put(**values: Any) -> None:
    """Choose for the reader, as from a button's callback: what the controls of these keys show from now on."""
    for key, value in values.items():
        st.session_state[f"{_PREFIX}{key}"] = value


def names_one(options: Sequence[Option], key: str) -> bool:
    """Whether one of the options was chosen already, by the address or by a control."""
    asked = st.query_params.get(key)
    return st.session_state.get(f"{_PREFIX}{key}") in options or asked in [str(option) for option in options]


def _prepare(options: Sequence[Option], key: str, default: Option) -> str:
    widget = f"{_PREFIX}{key}"
    if st.session_state.get(widget) not in options:
        asked = st.query_params.get(key)
        st.session_state[widget] = next((option for option in options if str(option) == asked), default)
    return widget


def _remember(key: str, value: Option) -> Option:
    if st.query_params.get(key) != str(value):
        st.query_params[key] = str(value)
    return value
