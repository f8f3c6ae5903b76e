"""Pieces that every page is made of: a figure with its table and its downloads, notes, and the page's head."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pyarrow as pa
import streamlit as st

from dashboard.choice import Choice
from dashboard.text import escape_markdown, whole_cell, with_code
from executor.errors import HprofError
from executor.units import UNKNOWN
from profiler.plain_text import readable
from profiler.report.build import machine_label, model_label
from profiler.report.measured import what_was_measured

_MAX_ROWS: Final = 10_000
_MAX_CHARS: Final = 300
_MAX_FAULTS: Final = 3
_DIGITS: Final = 4
_CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"]}


@contextmanager
def one_sentence() -> Iterator[None]:
    """Says what could not be read, where the page would have stood."""
    try:
        yield
    except HprofError as error:
        st.error(escape_markdown(error), icon=":material/error:")
    except (OSError, pa.ArrowException) as error:  # as when a capture is replaced while it is read
        st.error(
            escape_markdown(f"a file of the capture could not be read ({error}); reload the page."),
            icon=":material/error:",
        )


def head(title: str, choice: Choice) -> None:
    """The page's title, what it is about, and what the capture warns of."""
    manifest = choice.capture.manifest
    measured = what_was_measured(manifest)
    if measured.is_exact:
        said = f"{measured.first_word}, nothing was timed"
        st.badge(said, icon=":material/science:", color="violet")
    st.title(title, anchor=False)
    source = None if manifest.source == "hprof" else f"from {manifest.source}"
    cell = whole_cell(choice.sizes) if choice.sizes else None
    facts = [choice.found.name, model_label(manifest.model), machine_label(manifest), cell, source]
    st.caption("  ·  ".join(escape_markdown(fact) for fact in facts if fact))
    if (rates := measured.rates_line()) is not None and measured.is_exact:
        st.caption(escape_markdown(rates))
    if manifest.state != "complete":
        state = "was interrupted" if manifest.state == "interrupted" else "is still running, or was killed"
        rest = ": these are the passes that were completed" if choice.sizes else ""
        st.warning(f"The capture {state}{rest}.", icon=":material/warning:")
    for fault in manifest.faults[:_MAX_FAULTS]:
        st.warning(escape_markdown(fault), icon=":material/warning:")


def figure(
    figure: go.Figure,
    *,
    alt: str,
    key: str,
    table: pd.DataFrame,
    name: str,
    beside: bool = False,
    is_open: bool = False,
    on_select: Callable[[], None] | None = None,
) -> None:
    """A chart, and the same figures as a table with downloads: beside it, or under it, there folded unless `is_open`.

    on_select: called when a point is clicked; `st.session_state[key]` then says which.
    """
    if beside:
        left, right = st.columns([3, 2], gap="medium")
    else:
        left = right = st.container()
    with left:
        if on_select is None:
            st.plotly_chart(figure, key=key, config=_CONFIG, alt=alt)
        else:
            st.plotly_chart(figure, key=key, config=_CONFIG, alt=alt, on_select=on_select, selection_mode="points")
    with right:
        if beside or is_open:
            _table(table, alt, key, name)
        else:
            with st.expander("The same figures as a table"):
                _table(table, alt, key, name)


def table(table: pd.DataFrame, *, alt: str, key: str, name: str) -> None:
    """A table with its downloads."""
    _table(table, alt, key, name)


def _table(table: pd.DataFrame, alt: str, key: str, name: str) -> None:
    shown = _bounded(table)
    st.dataframe(
        shown,
        hide_index=True,
        alt=f"Table: {alt}",
        key=f"{key}-table",
        height=_height(len(shown)),
        placeholder=UNKNOWN,
    )
    if len(shown) < len(table):
        st.caption(f"The first {len(shown):,} of {len(table):,} rows; the files below have all of them.")
    downloads(table, key=key, name=name)


def _bounded(table: pd.DataFrame) -> pd.DataFrame:
    """So much of it as a browser can be sent at once and a person can read: 10,000 rows, 300 characters of a text, and
    four digits of a fraction. The files have everything.
    """
    shown = table.iloc[:_MAX_ROWS].copy()
    for column in shown.select_dtypes(include="float"):
        shown[column] = _readable(shown[column])
    for column in shown.select_dtypes(include=["object", "string", "category"]):
        texts = shown[column].astype(object)
        is_long = texts.map(lambda value: isinstance(value, str) and len(value) > _MAX_CHARS)
        if is_long.any():
            shown[column] = texts.where(~is_long, texts.astype(str).str.slice(0, _MAX_CHARS - 1) + "…")
    return shown


def _readable(values: pd.Series) -> pd.Series:
    """Four significant digits, and all of those before the point: 115.6, 13668, 0.0123."""
    numbers = values.to_numpy(float)
    size = np.abs(numbers, where=np.isfinite(numbers) & (numbers != 0), out=np.ones_like(numbers))
    scale = 10.0 ** np.clip(_DIGITS - 1 - np.floor(np.log10(size)), 0, 12)
    return pd.Series(np.round(numbers * scale) / scale, values.index)


def _height(n_rows: int) -> int | Literal["content"]:
    return "content" if n_rows <= 12 else 420


def downloads(table: pd.DataFrame, *, key: str, name: str) -> None:
    """The table as CSV and parquet; made when asked for."""
    with st.container(horizontal=True, gap="small"):
        table_downloads(lambda: table, key=key, name=name)


def table_downloads(make: Callable[[], pd.DataFrame], *, key: str, name: str, what: str = "") -> None:
    """The buttons alone; the table is made when one is pressed."""
    download(f"{what}CSV", lambda: as_csv(make()), f"{name}.csv", "text/csv", f"{key}-csv")
    parquet = "application/octet-stream"
    download(f"{what}parquet", lambda: as_parquet(make()), f"{name}.parquet", parquet, f"{key}-parquet")


def download(label: str, make: Callable[[], bytes], file_name: str, mime: str, key: str) -> None:
    """A button that makes the file only when it is pressed, and does not run the page again."""
    st.download_button(label, make, file_name, mime, key=key, on_click="ignore", icon=":material/download:")


def as_csv(table: pd.DataFrame) -> bytes:
    """UTF-8 with a header; text that a spreadsheet would take for a formula starts with an apostrophe."""
    safe = table.copy()
    for column in safe.select_dtypes(include=["object", "string", "category"]):
        texts = safe[column].astype(object)
        risky = texts.map(lambda value: isinstance(value, str) and value[:1] in "=+-@\t\r")
        safe[column] = texts.where(~risky, "'" + texts.astype(str))
    return safe.to_csv(index=False).encode()


def as_parquet(table: pd.DataFrame) -> bytes:
    """One zstd parquet file."""
    out = io.BytesIO()
    table.to_parquet(out, compression="zstd", index=False)
    return out.getvalue()


def text_box(label: str, value: str, *, key: str, width: int | Literal["stretch"] = "stretch") -> str:
    """A box for a line of text under a label of unknown origin; what is in it, without spaces around it.

    Streamlit takes a label for Markdown and reads it out as it is: escaped, a screen reader would speak backslashes. So
    it is drawn apart, and the box has it plain.
    """
    plain = " ".join(readable(label).split())
    with st.container(gap=None, width=width):
        st.caption(escape_markdown(plain))
        return st.text_input(plain, value, key=key, label_visibility="collapsed").strip()


def nothing(reason: str, advice: str = "") -> None:
    """Why the page has nothing to show (any text), and what would give it something (our own Markdown)."""
    st.info(f"{with_code(reason)} {advice}".strip(), icon=":material/info:")


def sentences(texts: Sequence[str]) -> None:
    """Notes under a figure, a line each."""
    if texts:
        st.caption("  \n".join(map(with_code, texts)))
