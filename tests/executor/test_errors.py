"""What errors say of other libraries' errors, and of names that were mistyped."""

from __future__ import annotations

from executor.errors import HprofError, did_you_mean, first_line


def test_only_the_first_line_of_another_librarys_error_is_quoted() -> None:
    assert first_line(ValueError("CSV parse error: row 3.\nwith much more")) == "CSV parse error: row 3"
    assert first_line(ValueError("x" * 500), max_length=10) == "x" * 10
    assert first_line(KeyError()) == "KeyError"
    assert first_line(ValueError("\n")) == "ValueError"


def test_an_error_is_one_line_that_steers_no_terminal() -> None:
    assert str(HprofError("'\x1b[31m\u202ename'\nis none;  give another.")) == "'?[31m?name' is none; give another."


def test_near_names_are_offered_and_far_ones_are_not() -> None:
    assert did_you_mean("ONN", ["off", "on", "hot"]) == "did you mean on?"
    assert did_you_mean("frobnicate", ["off", "on", "hot"]) is None
