"""The Overview's parts: cards, tables and downloads over one report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson
import pandas as pd
import streamlit as st

from dashboard import load, passes, show
from dashboard.choice import Choice
from dashboard.figures.spent import PART_LABELS, spent_figure
from dashboard.text import SIGNS, percent, plain
from profiler.metrics import FIGURES, CopyFigures
from profiler.metrics.spent import device_spent
from profiler.report.data import Cell
from profiler.report.summary import device_name
from profiler.report.tables import number_ranges
from profiler.report.units import format_bytes, format_gb_s, format_ns, format_share, format_value
from profiler.stats import Comparison, Estimate

CARDS: Final = {
    "ttft_ns": "Time to first token",
    "prefill_tokens_per_s": "Prefill, tokens a second",
    "decode_tokens_per_s": "Decode, tokens a second",
    "bytes_h2d": "Bytes copied to the device",
    "exposed_copy_ns": "Exposed copy time",
    "vram_peak_bytes": "Device memory at the peak",
}
UNKNOWN: Final = "–"
_DIRECTIONS: Final = {
    "h2d": "to the device",
    "d2h": "to the host",
    "d2d": "on the device",
    "uvm_h2d": "pages moved to the device",
    "uvm_d2h": "pages moved to the host",
}
_LEAST_FOR_A_RATE: Final = 1_000_000  # bytes


def cards(choice: Choice, cell: Cell) -> list[str]:
    """The headline figures: B large (or the only arm), its change against A, and both with their intervals.

    Gives the labels of those that the cell does not have.
    """
    known = {name: title for name, title in CARDS.items() if any(_found(choice, cell, name))}
    for start in range(0, len(known), 3):
        columns = st.columns(3, gap="small")
        for name, column in zip(list(known)[start : start + 3], columns, strict=False):
            with column, st.container(border=True):
                _card(choice, cell, name, known[name])
    return [FIGURES[name].label for name in CARDS if name not in known]


def missing_line(missing: list[str]) -> list[str]:
    """What of the headline figures there is not, as a sentence."""
    return [f"Not in this capture for these passes: {', '.join(missing)}."] if missing else []


def reasons_line(choice: Choice, cell: Cell) -> str | None:
    """Why verdicts on B are inconclusive, each reason once."""
    compared = cell.against_baseline.get(choice.b or "", {}).values()
    reasons = dict.fromkeys(found.reason for found in compared if found is not None and found.reason)
    return f"Inconclusive: {'; '.join(reasons)}." if reasons else None


def _found(choice: Choice, cell: Cell, name: str) -> list[Estimate | None]:
    return [cell.arms[arm].figures["pass"].get(name) for arm in choice.arms]


def _card(choice: Choice, cell: Cell, name: str, title: str) -> None:
    unit = FIGURES[name].unit
    found = _found(choice, cell, name)
    shown = found[-1]
    value = format_value(shown.median, unit) if shown is not None else UNKNOWN
    compared = cell.against_baseline.get(choice.b or "", {}).get(name)
    delta, colour = _delta(compared, found)
    st.metric(title, value, delta, delta_color=colour, delta_arrow="off", help=FIGURES[name].meaning)
    if len(found) == 1:
        st.caption(plain(_spread(shown, unit)))
        return
    lines = [
        f"{letter} {plain(arm)}: {plain(interval(one, unit))}"
        for letter, arm, one in zip("AB", choice.arms, found, strict=False)
    ]
    st.caption("  \n".join(lines))


def _spread(found: Estimate | None, unit: str) -> str:
    """What a single arm's figure is the median of, and its interval."""
    if found is None:
        return "not known"
    bounds = interval(found, unit).partition(" [")[2]
    passes_read = f"median of {found.n} passes" if found.n > 1 else "one pass"
    return f"{passes_read}, 95 % interval [{bounds}" if bounds else passes_read


def _delta(compared: Comparison | None, found: list[Estimate | None]) -> tuple[str | None, Any]:
    """The change in words, with its interval, and the colour that goes with the verdict."""
    if compared is not None:
        bounds = (
            f" (×{compared.low:.2f} to ×{compared.high:.2f})"
            if compared.low is not None and compared.high is not None
            else ""
        )
        words = (
            compared.verdict
            if compared.verdict in ("inconclusive", "no difference")
            else f"{percent(compared)} {compared.verdict}"
        )
        colour = {"faster": "blue", "slower": "orange"}.get(compared.verdict, "off")
        return f"{SIGNS[compared.verdict]} {words}{bounds}", colour
    if len(found) == 2 and found[0] is not None and found[1] is not None and found[0].median > 0:
        return _relative(found[1].median / found[0].median), "off"
    return None, "off"


def _relative(ratio: float) -> str:
    if abs(ratio - 1) < 0.0005:
        return "= the same"
    if ratio >= 2:
        return f"{ratio:.2g} times as much"
    return f"{abs(ratio - 1) * 100:.3g} % {'more' if ratio > 1 else 'less'}"


def interval(found: Estimate | None, unit: str) -> str:
    """`501 ms [420 ms, 587 ms]`; the interval where six passes or more gave one."""
    if found is None:
        return "not known"
    text = format_value(found.median, unit)
    if found.low is None or found.high is None or found.low == found.high:
        return text
    return f"{text} [{format_value(found.low, unit)}, {format_value(found.high, unit)}]"


def figure_table(choice: Choice) -> pd.DataFrame:
    """Every figure of the cell: A, B, ratio, interval, verdict."""
    rows = []
    for name, meaning in FIGURES.items():
        found = _found(choice, choice.cell, name)
        if not any(found):
            continue
        compared = choice.cell.against_baseline.get(choice.b or "", {}).get(name)
        row = {
            "figure": meaning.label,
            **{
                f"{x} {arm}": interval(one, meaning.unit) for x, arm, one in zip("AB", choice.arms, found, strict=False)
            },
        }
        if choice.b is not None:
            row |= {
                "B / A": f"{compared.ratio:.3f}" if compared else "",
                "interval": _bounds(compared),
                "verdict": compared.verdict if compared else "",
            }
        rows.append(row | {"meaning": meaning.meaning})
    return pd.DataFrame(rows)


def _bounds(compared: Comparison | None) -> str:
    if compared is None or compared.low is None or compared.high is None:
        return ""
    return f"{compared.low:.3f} to {compared.high:.3f}"


def measured_passes(choice: Choice) -> pd.DataFrame:
    """Figures of the passes of the chosen cell and arms, warm-ups left out."""
    frame = load.figures_of_passes(choice.found)
    return frame[frame["pass_id"].isin(passes.of_cell(choice)["pass_id"])]


def spent_alt(spent: pd.DataFrame, labels: list[str]) -> str:
    """The stacked bars in a sentence each."""
    told = []
    for label, (_, row) in zip(labels, spent.iterrows(), strict=True):
        parts = {
            "compute alone": "compute_ns",
            "hidden copy": "hidden_ns",
            "exposed copy": "exposed_ns",
            "idle": "idle_ns",
        }
        told.append(f"{label}: " + ", ".join(f"{name} {format_ns(row[key])}" for name, key in parts.items()))
    return "Where the time went. " + "; ".join(told) + "."


def device_cards(choice: Choice) -> None:
    """One card a device of an imported trace: how much was copied, how fast, how much of it hidden."""
    devices = choice.report.devices
    columns = st.columns(min(len(devices), 3), gap="small")
    for number, device in enumerate(devices):
        with columns[number % len(columns)], st.container(border=True):
            st.markdown(f"**{plain(device_name(device))}**")
            main = next((name for name in ("h2d", "uvm_h2d") if name in device.copies), None)
            if main is not None:
                copies = device.copies[main]
                hidden = format_share(copies.hidden_ns / copies.busy_ns) if copies.busy_ns else UNKNOWN
                st.metric("Copy time hidden behind compute", hidden)
            lines = [f"{device.kernels:,} kernels, {format_ns(device.compute_busy_ns)} busy"]
            lines += [f"{_DIRECTIONS.get(name, name)}: {_copies(copies)}" for name, copies in device.copies.items()]
            st.caption("  \n".join(plain(line) for line in lines))


def _copies(copies: CopyFigures) -> str:
    size = format_bytes(copies.bytes) if copies.bytes is not None else f"{copies.count:,} copies"
    # Of a few bytes the rate says how long a call takes, not how fast the link is.
    has_speed = copies.gb_s is not None and copies.bytes is not None and copies.bytes >= _LEAST_FOR_A_RATE
    speed = f" at {format_gb_s(copies.gb_s)}" if has_speed and copies.gb_s else ""
    return f"{size}{speed}; busy {format_ns(copies.busy_ns)}, exposed {format_ns(copies.exposed_ns)}"


def device_time(choice: Choice) -> None:
    """What each device of an imported trace did, as stacked bars."""
    spent = device_spent(choice.report.devices)
    labels = [device_name(device) for device in choice.report.devices]
    texts = spent[["compute_ns", "hidden_ns", "exposed_ns"]].map(format_ns).T  # a trace says no more of the parts
    texts.columns = pd.Index(labels)
    texts.insert(0, "part", [PART_LABELS[str(part)] for part in texts.index])
    show.figure(
        spent_figure(spent, labels),
        alt="busy time of each device: computing, hidden and exposed copies from the host",
        key="devices",
        table=texts,
        name="device-time",
        beside=True,
    )


def configuration(choice: Choice) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Settings in which A and B differ, and those that they share (machine, model, placement, ...)."""
    manifest = choice.capture.manifest
    arms = {arm.name: arm for arm in manifest.arms}
    settings = [dict(_flat(_arm_settings(arms.get(name)))) for name in choice.arms]
    differing, shared = [], {}
    for key in dict.fromkeys(key for one in settings for key in one):
        values = [one.get(key) for one in settings]
        if len(settings) == 2 and values[0] != values[1]:
            differing.append(
                {
                    "setting": key,
                    **{f"{x} {arm}": _text(v) for x, arm, v in zip("AB", choice.arms, values, strict=False)},
                }
            )
        else:
            shared[key] = values[0]
    parts = (
        "hprof_version",
        "created_utc",
        "machine",
        "model",
        "placement",
        "grid",
        "seeds",
        "environment",
        "link_h2d_gb_s",
    )
    shared |= dict(_flat({part: getattr(manifest, part) for part in parts}))
    shared["command"] = " ".join(manifest.argv)
    common = [
        {"setting": key, "value": _text(value)} for key, value in shared.items() if value not in (None, "", [], {})
    ]
    return pd.DataFrame(differing), pd.DataFrame(common, columns=["setting", "value"])


def _arm_settings(arm: Any) -> dict[str, Any]:
    if arm is None:
        return {}
    options = {name: value for name, value in arm.options.items() if name != "requested"}
    asked = arm.options.get("requested")
    if isinstance(asked, Mapping):
        options |= {"requested": {name: value for name, value in asked.items() if name != "arm"}}
    return {"requested arm": arm.requested, "effective arm": arm.effective, **options}


def _flat(value: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping) and depth < 4:
            yield from _flat(inner, f"{prefix}{key}.", depth + 1)
        else:
            yield f"{prefix}{key}", inner


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:,}"
    if isinstance(value, list) and value and all(type(one) is int for one in value):
        text = number_ranges(value)
    else:
        text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    return text if len(text) <= 300 else f"{text[:299]}…"


def downloads(choice: Choice) -> None:
    """The whole report, as files."""
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
