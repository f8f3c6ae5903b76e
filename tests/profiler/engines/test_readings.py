"""`--metric NAME=REGEX`: what is read of a program's output, and what cannot be asked for."""

from __future__ import annotations

import pytest

from executor.errors import HprofError
from profiler.engines import readings
from profiler.engines.process import FinishedProgram
from profiler.engines.readings import no_number, parse_rules, read_figures


def value(rule: str, output: str, errors: str = "") -> float | None:
    [reading] = read_figures(FinishedProgram(0, output, errors, False, 1), parse_rules([rule]))
    return reading.value


@pytest.mark.parametrize(
    ("rule", "output", "expected"),
    [
        ("t/s=speed: ([0-9.]+)", "speed: 12.5 t/s\n", 12.5),
        ("t/s=speed: ([0-9.]+)", "speed: 1\nspeed: 2\nother\n", 2),  # the last line that matches
        ("t/s=^([0-9.]+) t/s$", "x 1 t/s\n7 t/s\n", 7),
        ("load_ms=[0-9.]+", "a 5 then 6", 5),  # no group: the whole match, the first of a line
        ("load_ms=(?:a|b)=(?P<v>\\d+)", "b=3", 3),
        ("t/s=(?i)SPEED (\\S+)", "speed 1e3", 1000),
        ("t/s=speed (.*)", "speed 1_000", None),
        ("t/s=speed (.*)", "speed -2.5E+1 ", -25),
        ("t/s=nothing (.)", "speed 1", None),
        ("t/s=speed (.)", "", None),
        ("t/s=speed=(.)", "speed=4", 4),  # the name ends at the first =
    ],
)
def test_the_last_line_that_matches_counts(rule: str, output: str, expected: float | None) -> None:
    assert value(rule, output) == expected


def test_both_streams_are_read_and_the_output_counts_first() -> None:
    assert value("t/s=speed (.)", "", "speed 1") == 1
    assert value("t/s=speed (.)", "speed 2", "speed 1") == 2


@pytest.mark.parametrize(
    ("rule", "better"),
    [
        ("t/s=x", "higher"),
        ("tokens_per_s=x", "higher"),
        ("ttft_ms=x", "lower"),
        ("load time s=x", "lower"),
        ("peak_bytes=x", "lower"),
        ("score:higher=x", "higher"),
        ("t/s:lower=x", "lower"),
    ],
)
def test_which_way_is_better_comes_from_the_unit_or_the_user(rule: str, better: str) -> None:
    assert parse_rules([rule])[0].better == better


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (["speed"], "is not NAME=REGEX"),
        (["=x"], "is not NAME=REGEX"),
        (["t/s="], "is not NAME=REGEX"),
        (["a\x1b/s=x"], "is not NAME=REGEX"),
        (["score=x"], "write score:higher=... or score:lower=..."),
        (["wall_ns=x"], "a figure of hprof's own"),
        (["t/s=x", "t/s=y"], "gives the name 't/s' twice"),
        (["t/s=("], "no regular expression that can be used"),
        (["t/s=(?=x)y"], "no look-around"),
        ([r"t/s=(a)\1"], "no back-references"),
        (["t/s=(a)(b)"], "has 2 groups; keep one"),
        (["t/s=((a{1000}){1000}){1000}"], "no regular expression that can be used"),
        (["t/s=" + "(" * 400 + ")" * 400], "no regular expression that can be used|has 400 groups"),
        (["t/s=" + "x" * 1001], "longer than 1000 characters"),
    ],
)
def test_what_cannot_be_asked_for_is_one_sentence(rules: list[str], said: str) -> None:
    with pytest.raises(HprofError, match=said):
        parse_rules(rules)


@pytest.mark.parametrize("text", ["fast", "", "1,234", "nan", "inf", "1e999", "1e308", "1e-320", "0x10"])
def test_what_matches_and_is_no_number_is_unknown_and_kept_to_be_told(text: str) -> None:
    (rule,) = parse_rules(["t/s=speed:(.*)$"])
    [reading] = read_figures(FinishedProgram(0, f"speed:{text}", "", False, 1), [rule])
    assert (reading.value, reading.text) == (None, text)
    assert f"found {text!r}, which is no number" in no_number(rule, text)


def test_an_expression_that_backtracks_for_ever_elsewhere_takes_no_time_here() -> None:
    """Python's re needs 2^n steps for this one; the test would never end."""
    assert value("t/s=(a+)+$", "a" * 1_000_000 + "b") is None


def test_a_search_that_takes_too_long_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """RE2 steps through a thousand states a character here: hours for what a program may print."""
    monkeypatch.setattr(readings, "_SEARCH_S", 0.0)
    with pytest.raises(HprofError, match="takes longer than 0 s to search what a program printed; write it without"):
        value("t/s=(?:a{0,9}){0,9}c", "a")


def test_the_last_line_that_matches_counts_in_whatever_piece_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "_PIECE", 16)
    assert value("t/s=speed ([0-9])", "speed 1\nspeed 2\n" + "other line\n" * 9) == 2
    monkeypatch.setattr(readings, "_MAX_LINE", 8)
    assert value("t/s=speed ([0-9])", "speed 1\nspeed 2 t/s\n") == 1
