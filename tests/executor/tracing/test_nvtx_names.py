"""Range names survive the round trip, and hostile text parses to nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.tracing.nvtx_names import (
    PassName,
    StepName,
    UbatchName,
    format_pass,
    format_step,
    format_ubatch,
    parse,
)


def test_formats_are_the_documented_ones() -> None:
    assert (
        format_pass(PassName(3, "on", 512, 0, 2048, 16, 1, False))
        == "pass=3 arm=on n_ubatch=512 n_depth=0 n_prompt=2048 n_gen=16 repetition=1 warmup=0"
    )
    assert format_ubatch(UbatchName(0, "prefill", 512)) == "ubatch=0 phase=prefill n_tokens=512"
    copy = StepName(7, "whole", "blk.7.ffn_up.weight")
    assert format_step(copy) == "layer=7 tensor=blk.7.ffn_up.weight what=whole"
    assert format_step(StepName(7, "ffn")) == "layer=7 what=ffn"


@given(st.text(max_size=40), st.integers(0, 2**31 - 1), st.booleans())
def test_a_pass_round_trips(arm: str, number: int, warmup: bool) -> None:
    name = PassName(number, arm, 512, 0, 2048, 16, 1, warmup)
    assert parse(format_pass(name)) == name


@given(
    st.one_of(st.none(), st.integers(0, 1000)),
    st.text(max_size=20),
    st.one_of(st.none(), st.text(max_size=40)),
)
def test_a_step_round_trips(layer: int | None, what: str, tensor: str | None) -> None:
    name = StepName(layer, what, tensor)
    assert parse(format_step(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pass=3",
        "pass=x arm=on n_ubatch=1 n_depth=0 n_prompt=1 n_gen=1 repetition=1 warmup=0",
        "pass=99999999999999999999 arm=on n_ubatch=1 n_depth=0 n_prompt=1 n_gen=1 repetition=1 warmup=0",
        "ubatch=0 phase=training n_tokens=1",
        "ubatch=-1 phase=prefill n_tokens=1",
        "layer=1 what=" + "x" * 5000,
        "Holding lock =",
    ],
)
def test_other_text_is_no_name(text: str) -> None:
    assert parse(text) is None


@given(st.text(max_size=200))
def test_any_text_parses_without_an_error(text: str) -> None:
    parse(text)
