"""`--arm NAME=FLAGS`."""

from __future__ import annotations

import pytest

from executor.errors import HprofError
from profiler.engines.arms import BenchArm, parse_arm, parse_arms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on=-pw 1", BenchArm("on", ("-pw", "1"))),
        ("off=", BenchArm("off", ())),
        ('ot=-ot "ffn_(up|down)=CPU"', BenchArm("ot", ("-ot", "ffn_(up|down)=CPU"))),
        (
            "env=GGML_OP_OFFLOAD_MIN_BATCH=64 -fa 1",
            BenchArm("env", ("-fa", "1"), (("GGML_OP_OFFLOAD_MIN_BATCH", "64"),)),
        ),
        ("v=A=b=c", BenchArm("v", (), (("A", "b=c"),))),
    ],
)
def test_words_are_flags_or_variables(text: str, expected: BenchArm) -> None:
    assert parse_arm(text) == expected


def test_an_arm_is_spelled_as_it_is_typed() -> None:
    assert parse_arm("x=A=1 -ot 'a|b=CPU'").spelled == "A=1 -ot 'a|b=CPU'"


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (("on",), "not NAME=FLAGS"),
        (("=-pw 1",), "not NAME"),
        (("a='x",), "quote"),
        (("a=", "a=-x"), "twice"),
        (("a=-fa 1 -ts 3,1",), "-ts 3,1 is llama-server's spelling.*write -ts 3/1"),
    ],
)
def test_anything_else_is_one_sentence(texts: tuple[str, ...], said: str) -> None:
    with pytest.raises(HprofError, match=said):
        parse_arms(texts)


def test_several_splits_in_llama_benchs_own_spelling_are_its_business() -> None:
    assert parse_arm("a=-ts 3/1,1/1").flags == ("-ts", "3/1,1/1")
