"""What if: the capture's workload on another link, GPU, quant type or memory, predicted, with what was measured."""

from __future__ import annotations

from typing import Final

import streamlit as st

from dashboard import show
from dashboard.choice import Choice, current
from dashboard.figures.what_if import what_if_figure
from dashboard.text import escape_markdown
from dashboard.what_if import WhatIfSettings, fitted, predicted
from executor.devices.known import known_gpus
from executor.units import format_share, listed
from profiler.metrics import FIGURES
from profiler.predicting.calibrate import Calibration
from profiler.predicting.what_if import WhatIfFigure, measured_rows

_FIGURES: Final[tuple[WhatIfFigure, ...]] = ("ttft_ns", "prefill_tokens_per_s", "decode_tokens_per_s")
_AS_MEASURED: Final = "as measured"
_QUANTS: Final = ("Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "BF16")
_OTHER_LINKS_GB_S: Final = (12, 25, 50)
_LEAST_GB_S, _MOST_GB_S = 0.01, 1000.0
_LEAST_TOKENS, _MOST_TOKENS = 32, 1_000_000


def main(choice: Choice) -> None:
    show.head("What if", choice)
    calibration = fitted(choice.found) if choice.sizes is not None else "It has no passes."
    if isinstance(calibration, str):
        say_why_not(calibration)
        return
    controls(choice, calibration)


def controls(choice: Choice, calibration: Calibration) -> None:
    own_link = min(max(round(1 / calibration.costs.ns_per_byte["ahead"], 2), _LEAST_GB_S), _MOST_GB_S)
    with st.container(horizontal=True, gap="medium"):
        name = st.segmented_control("Figure", _FIGURES, default=_FIGURES[0], format_func=_short_name) or _FIGURES[0]
        settings = sizes_and_speeds(choice, own_link)
    found = predicted(choice.found, settings)
    if isinstance(found, str):
        st.warning(escape_markdown(found))
        return
    rows, points = found.rows(name), measured_rows(choice.capture, name, settings.n_prompt, settings.n_depth)
    show.figure(
        what_if_figure(rows, points, name, list(dict.fromkeys(rows["arm"]))),
        alt=f"Predicted {FIGURES[name].headline} over the ubatch, a line an arm, with measured points",
        key="what-if",
        table=rows,
        name="what-if",
    )
    show.sentences(legend(calibration, settings, own_link))


def sizes_and_speeds(choice: Choice, own_link: float) -> WhatIfSettings:
    """What the controls say; what was left alone is as in the capture."""
    assert choice.sizes is not None
    cell = choice.sizes.key
    is_file = not str(choice.capture.manifest.model.get("origin")).startswith(("preset", "conf"))
    n_depth, n_prompt = (min(value or 0, _MOST_TOKENS) for value in (cell.n_depth, cell.n_prompt))
    link = st.number_input("Link, GB/s", _LEAST_GB_S, _MOST_GB_S, own_link, key="link")
    depth = st.number_input("Depth, tokens", 0, _MOST_TOKENS, n_depth, step=4096, key="depth")
    prompt = st.number_input("Prompt, tokens", _LEAST_TOKENS, _MOST_TOKENS, max(_LEAST_TOKENS, n_prompt), key="prompt")
    gpu = st.selectbox("GPU", [_AS_MEASURED, *known_gpus()], key="gpu")
    quant = st.selectbox("Weights stored as", [_AS_MEASURED, *(() if is_file else _QUANTS)], key="quant")
    budget = st.number_input("Device memory, GiB; 0: placed as measured", 0.0, 4096.0, 0.0, key="budget")
    return WhatIfSettings(
        n_prompt=int(prompt),
        n_depth=int(depth),
        link_gb_s=None if link == own_link else link,
        gpu=None if gpu == _AS_MEASURED else gpu,
        quant=None if quant == _AS_MEASURED else quant,
        vram_budget=f"{budget:g}GiB" if budget else None,
    )


def legend(calibration: Calibration, settings: WhatIfSettings, own_link: float) -> list[str]:
    """What the chart's marks mean, and how sure they are."""
    if settings.gpu is not None:
        return [f"By the rates of {settings.gpu} alone: nothing says how far off they are, so there are no bands."]
    spreads = [f"{name} ± {format_share(value)}" for name, value in calibration.spread.items() if value is not None]
    return [
        f"Predicted by a fit to this capture, whose copies reach {own_link:g} GB/s ({listed(spreads)} there).",
        "Crosses were measured, under the capture's own settings. Hollow markers lie outside what was fitted.",
    ]


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
