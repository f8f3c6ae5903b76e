"""What if: the capture's workload on another link, GPU, quant type or memory, predicted, with what was measured."""

from __future__ import annotations

from typing import Final, get_args

import pandas as pd
import streamlit as st

from dashboard import show
from dashboard.choice import Choice, current
from dashboard.figures.size_axes import SweepArms
from dashboard.figures.what_if import what_if_figure
from dashboard.table_columns import in_one_unit
from dashboard.text import escape_markdown
from dashboard.what_if import WhatIfSettings, fitted, predicted
from executor.devices.known import known_gpus
from executor.policies import ARMS
from executor.units import format_factor, format_interval, format_share, listed
from profiler.metrics import FIGURES
from profiler.predicting.calibrate import Calibration
from profiler.predicting.what_if import WhatIfFigure, beside_measured, measured_rows
from profiler.report.sweep import sweep_figures
from profiler.report.verdicts import as_fast

_FIGURES: Final[tuple[WhatIfFigure, ...]] = get_args(WhatIfFigure)
_AS_MEASURED: Final = "as measured"
_NONE: Final = "none"
_QUANTS: Final = ("Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "BF16")
_OTHER_LINKS_GB_S: Final = (12, 25, 50)
_LEAST_GB_S, _MOST_GB_S = 0.01, 1000.0
_CONTROL: Final = 165  # pixels wide: two beside each other on a phone
_LEAST_TOKENS, _MOST_TOKENS = 32, 1_000_000


def main(choice: Choice) -> None:
    show.head("What would another link, GPU or size change?", choice)
    calibration = fitted(choice.found) if choice.sizes is not None else "It has no passes."
    if isinstance(calibration, str):
        say_why_not(calibration)
        return
    own_link = min(max(round(1 / calibration.costs.ns_per_byte["ahead"], 2), _LEAST_GB_S), _MOST_GB_S)
    name = st.segmented_control("Figure", _FIGURES, default=_FIGURES[0], format_func=_short_name) or _FIGURES[0]
    settings = controls(choice, own_link)
    found = predicted(choice.found, settings)
    if isinstance(found, str):
        st.warning(escape_markdown(found), icon=":material/warning:")
        return
    rows, told = found.rows(name), sweep_figures(choice.headline_report.cells, name)
    points = measured_rows(told, settings.n_prompt, found.n_gen, settings.n_depth)
    if rows.empty:
        show.nothing(f"No pass of this capture has a {FIGURES[name].label}.")
        return
    answer(choice, rows, points, name, settings)
    show.sentences(legend(calibration, settings, own_link))


def controls(choice: Choice, own_link: float) -> WhatIfSettings:
    """What the controls say; what was left alone is as in the capture."""
    assert choice.sizes is not None
    cell = choice.sizes.key
    is_file = not str(choice.capture.manifest.model.get("origin")).startswith(("preset", "conf"))
    n_depth, n_prompt = (min(value or 0, _MOST_TOKENS) for value in (cell.n_depth, cell.n_prompt))
    n_ubatch = min(max(cell.n_ubatch or 512, _LEAST_TOKENS), _MOST_TOKENS)
    with st.container(horizontal=True, gap="small"):
        link = st.number_input("Link, GB/s", _LEAST_GB_S, _MOST_GB_S, own_link, key="link", width=_CONTROL)
        gpu = st.selectbox("GPU", [_AS_MEASURED, *known_gpus()], key="gpu", width=_CONTROL)
        quants = [_AS_MEASURED, *(() if is_file else _QUANTS)]
        quant = st.selectbox("Weights stored as", quants, key="quant", width=_CONTROL)
        budget = st.number_input(
            "Device memory, GiB",
            0.0,
            4096.0,
            0.0,
            key="budget",
            help="0: weights placed as they were measured",
            width=_CONTROL,
        )
        ubatch = st.number_input(
            "Ubatch, tokens", _LEAST_TOKENS, _MOST_TOKENS, n_ubatch, step=64, key=f"ubatch-{n_ubatch}", width=_CONTROL
        )
        prompt = st.number_input(
            "Prompt, tokens", _LEAST_TOKENS, _MOST_TOKENS, max(_LEAST_TOKENS, n_prompt), key="prompt", width=_CONTROL
        )
        measured = {arm.partition("@")[0] for arm in choice.sizes.arms}
        others = [_NONE, *(arm for arm in ARMS if arm not in measured)]
        arm = st.selectbox("Another arm", others, key="arm", width=_CONTROL)
        depth = st.number_input("Depth, tokens", 0, _MOST_TOKENS, n_depth, step=4096, key="depth", width=_CONTROL)
    return WhatIfSettings(
        n_prompt=int(prompt),
        n_gen=cell.n_gen or 0,
        n_depth=int(depth),
        n_ubatch=min(int(ubatch), int(prompt)),
        link_gb_s=None if link == own_link else link,
        gpu=None if gpu == _AS_MEASURED else gpu,
        quant=None if quant == _AS_MEASURED else quant,
        vram_budget=f"{budget:g}GiB" if budget else None,
        arm=None if arm == _NONE else arm,
    )


def answer(
    choice: Choice, rows: pd.DataFrame, points: pd.DataFrame, name: WhatIfFigure, settings: WhatIfSettings
) -> None:
    """The chosen ubatch in words and numbers, what was measured there beside it, and all sizes as a chart."""
    here = beside_measured(rows, points, settings.n_ubatch)
    st.markdown(escape_markdown(sentence(here, choice.a, choice.b, name, settings.n_ubatch)))
    names = list(dict.fromkeys(rows["arm"]))
    arms = SweepArms(names, choice.a or names[0], choice.b)
    show.figure(
        what_if_figure(rows, points, name, arms, settings.n_ubatch),
        alt=f"predicted {FIGURES[name].headline} over the ubatch, a line an arm, with {len(points)} measured points. "
        f"{sentence(here, choice.a, choice.b, name, settings.n_ubatch)}",
        key="what-if",
        table=rows,
        name="what-if",
    )
    unit = FIGURES[name].unit
    columns = {title: here[title] for title in ("predicted", "low", "high", "measured")}
    off_by = {title: values.round(1) for title, values in in_one_unit({"off by": here["off by"]}, "share").items()}
    table = here[["arm"]].assign(**in_one_unit(columns, unit), **off_by)
    st.markdown(
        f"**At a ubatch of {settings.n_ubatch:,}**, predicted and, where the settings are the capture's, measured:"
    )
    show.table(table, alt="predicted and measured, by arm", key="what-if-here", name="what-if-at-ubatch")


def sentence(here: pd.DataFrame, a: str | None, b: str | None, name: WhatIfFigure, n_ubatch: int) -> str:
    """`At a ubatch of 2,048 on takes 150 ms [147 ms, 153 ms], off 175 ms: 1.17 x as fast.`"""
    rows = {row["arm"]: row for row in here.to_dict("records")}
    known, unit = [arm for arm in (b, a) if arm in rows], FIGURES[name].unit
    spans = [
        f"{arm} {format_interval(rows[arm]['predicted'], _edge(rows[arm]['low']), _edge(rows[arm]['high']), unit)}"
        for arm in known
    ]
    texts = ", ".join(spans) or "neither arm is predicted"
    factor = ""
    if len(known) == 2:
        times = as_fast(rows[known[0]]["predicted"] / rows[known[1]]["predicted"], name)
        factor = f": {known[0]} is {format_factor(times)} x as fast"
    return f"Predicted {FIGURES[name].label} at a ubatch of {n_ubatch:,}: {texts}{factor}."


def _edge(value: float | None) -> float | None:
    return None if pd.isna(value) else value


def legend(calibration: Calibration, settings: WhatIfSettings, own_link: float) -> list[str]:
    """What the chart's marks mean, and how sure they are."""
    marks = "Crosses were measured, under the capture's own settings. Hollow markers lie outside what was fitted."
    if settings.gpu is not None:
        return [
            f"By the rates of {settings.gpu} alone: nothing says how far off they are, so there are no bands.",
            marks,
        ]
    names = {"ttft": "TTFT"}
    spreads = [
        f"{names.get(name, name)} ± {format_share(value)}"
        for name, value in calibration.spread.items()
        if value is not None
    ]
    sure = f" ({listed(spreads)} there)" if spreads else ""
    return [f"Predicted by a fit to this capture, whose copies reach {own_link:g} GB/s{sure}.", marks]


def _short_name(name: str) -> str:
    return FIGURES[name].headline.partition(",")[0]


def say_why_not(reason: str) -> None:
    show.nothing(f"This capture cannot be fitted to: {reason}")
    st.markdown("Captures of `hprof run` can. Without one, rates alone give a prediction, a run for each link:")
    st.code(
        "\n".join(
            f"hprof run -m qwen3-30b-a3b --device sim --link-gb-s {link} --arms off,on,full -p 1024 -n 4 -ub 64-1024*2"
            for link in _OTHER_LINKS_GB_S
        ),
        language="bash",
    )


main(current())
