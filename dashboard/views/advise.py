"""Advise: what to set under a budget of device memory, by a fit to the capture: what `hprof advise --fit` answers."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from typing import Any, Final

import pandas as pd
import streamlit as st

from dashboard import address, show
from dashboard.advice import AdviceSettings, Refused, advised
from dashboard.choice import Choice, current
from dashboard.empty_pages import why_empty
from dashboard.figures.advice import DECODE, MEMORY, TTFT, pareto_figure
from dashboard.text import escape_markdown, with_code
from profiler.cli.advise import Searched
from profiler.cli.advise_output import advice_blocks, advice_json, candidate_json
from profiler.predicting.candidates import OBJECTIVES
from profiler.report.blocks import Lines

_GIB: Final = 2**30
_LABELS: Final = {"mix": "all of it", "ttft": "first token", "prefill": "prefill", "decode": "decode"}
_ENGINES: Final = ("hprof", "llama.cpp")
_MOST_GIB: Final = 4096.0


def main(choice: Choice) -> None:
    show.head("What should I set?", choice)
    if (reason := why_empty(choice).get("advise")) is not None:
        show.nothing(reason, "Rates alone give an answer: `hprof advise -m MODEL --gpu rtx4090 --link gen4x16`.")
        return
    settings = controls(choice)
    found = advised(choice.found, settings)
    if isinstance(found, Refused):
        st.warning(escape_markdown(found.why), icon=":material/warning:")
        return
    answer(found)
    pareto(found)
    st.caption("The same in a terminal:")
    st.code(shlex.join(["hprof", "advise", *settings.options(choice.found.name)]), language="bash", wrap_lines=True)


def controls(choice: Choice) -> AdviceSettings:
    """What the controls say; first the chosen cell's sizes, in as much memory as its arms that stream held."""
    assert choice.sizes is not None
    n_prompt, n_gen, n_depth = choice.sizes.n_prompt or 512, choice.sizes.n_gen or 0, choice.sizes.n_depth or 0
    first = AdviceSettings("", "mix", str(n_prompt), str(n_gen), str(n_depth))
    with st.container(horizontal=True, gap="small"):
        budget = st.number_input(
            "Device memory, GiB", 0.01, _MOST_GIB, enough_gib(choice, first), step=1.0, key="advise-budget", width=165
        )
        prompt = st.text_input("Prompts, tokens", first.n_prompt, key="advise-prompt", width=165)
        n_gen = st.number_input("Generated, tokens", 0, 1_000_000, n_gen, key="advise-n", width=165)
        objective = address.segments("Make best", ["mix", *OBJECTIVES[:3]], "objective", _LABELS.__getitem__)
        engine = address.segments("For", _ENGINES, "for")
    return AdviceSettings(f"{budget:g}GiB", objective, prompt, str(n_gen), first.n_depth, engine)


def enough_gib(choice: Choice, first: AdviceSettings) -> float:
    """The most that an arm held at its peak which does not keep everything on the device, or the least that advice
    takes: it counts what kernels dequantise, too, and a simulated device does not hold that."""
    resident = {arm.name for arm in choice.capture.manifest.arms if arm.is_resident}
    passes = choice.capture.passes
    held = passes.loc[~passes["arm"].isin(resident), "vram_peak"].max()
    gib = 8.0 if pd.isna(held) else _quarters(float(held))
    found = advised(choice.found, replace(first, vram_budget=f"{gib:g}GiB"))
    least = found.least_bytes if isinstance(found, Refused) else None
    return gib if least is None else _quarters(least)


def _quarters(n_bytes: float) -> float:
    """In GiB, rounded up to a quarter."""
    return min(max(math.ceil(n_bytes / _GIB * 4) / 4, 0.25), _MOST_GIB)


def answer(found: Searched) -> None:
    """What to set, what it gives, how sure that is, and what would help."""
    told = advice_blocks(found.advice, found.spread, found.notes, found.llama_cpp, ())
    notes, to_set, gives, *typed, closing = [block for block in told if isinstance(block, Lines)]
    show.sentences([f"{note[:1].upper()}{note[1:]}" for note in notes.lines])
    st.markdown("  \n".join(_led(line) for block in (to_set, gives) for line in block.lines))
    for block in typed:
        sentence, command = block.lines
        show.sentences([sentence])
        st.code(command, language="bash", wrap_lines=True)
    show.sentences(list(closing.lines))


def _led(line: str) -> str:
    """`**Set:** ...`: the word before the colon stands out."""
    word, colon, rest = line.partition(": ")
    if not colon or " " in word:
        return with_code(line)
    return f"**{word.capitalize()}:** {with_code(f'`{rest}`' if word == 'set' else rest)}"


def pareto(found: Searched) -> None:
    """What no other setting beats in time to first token, decode and memory at once."""
    st.header("What does each GiB and each millisecond buy?", anchor=False)
    told = advice_json(found.advice, found.spread, found.notes, found.llama_cpp, ())
    front = rows(told["pareto"])
    looked_at = rows([candidate_json(one) for one in found.advice.ranked])
    show.figure(
        pareto_figure(front, looked_at),
        alt=f"{len(front)} settings that no other beats in time to first token ({_span(front[TTFT])} ms), decode "
        f"({_span(front[DECODE])} t/s) and memory ({_span(front[MEMORY])} GiB) at once, of {len(looked_at)} looked at",
        key="pareto",
        table=front,
        name="pareto",
        is_open=True,
    )


def rows(candidates: list[dict[str, Any]]) -> pd.DataFrame:
    """A row a candidate of `advise --json`, in units that people read."""
    return pd.DataFrame(
        {
            "arm": [one["arm"] for one in candidates],
            "-ub": [one["n_ubatch"] for one in candidates],
            TTFT: [one["ttft_ns_predicted"] / 1e6 for one in candidates],
            "prefill, t/s": pd.Series([one["prefill_tokens_per_s"] for one in candidates], dtype=float),
            DECODE: pd.Series([one["decode_tokens_per_s"] for one in candidates], dtype=float),
            MEMORY: [one["vram_bytes"] / _GIB for one in candidates],
            "slots": [one["slots"] for one in candidates],
            "cache, MiB": [one["moe_cache_mib"] for one in candidates],
            "host layers": [len(one["host_layers"]) for one in candidates],
            "bound by": [one["bound_by"] for one in candidates],
            "-ot": [one["override_tensor"] for one in candidates],
        }
    )


def _span(values: pd.Series[float]) -> str:
    return "none" if values.isna().all() else f"{values.min():,.4g} to {values.max():,.4g}"


main(current())
