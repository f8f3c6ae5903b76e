"""Figures that a program prints itself, found in its output by `--metric NAME=REGEX`.

The search is RE2's (through arrow), which takes time in proportion to the output whatever the expression: Python's own
can take for ever, and nothing ends it. Counted repetitions inside each other still cost RE2 0.1 ms a character, so the
search has a time limit too, looked at after each piece of the output.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from executor.errors import HprofError
from profiler.arithmetic.stats import Better
from profiler.engines.process import FinishedProgram
from profiler.metrics import FIGURES
from profiler.metrics.readings import can_be_judged

_NAME: Final = re.compile(r"(?P<name>[A-Za-z][\w./% -]{0,39}?)(?::(?P<better>lower|higher))?", re.ASCII)
_RATES: Final = ("/s", "_per_s")
_COSTS: Final = ("ns", "us", "ms", "s", "bytes")
_MAX_REGEX: Final = 1000
_MAX_LINE: Final = 1 << 20  # characters; a longer line is not searched
_PIECE: Final = 1 << 18  # characters that are searched at once
_SEARCH_S: Final = 10.0  # for one figure in the output of one process
_NUMBER: Final = re.compile(
    r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII
)  # and no `1_000`, which Python reads
_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class ReadingRule:
    """What is read and how: the last line that matches counts, of it the group, or without one the whole match."""

    name: str
    regex: str
    better: Better

    @property
    def spelled(self) -> str:
        """As an error shows it."""
        return f"--metric {self.name}={self.regex[:_SHOWN]}"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one program printed; `value` is None where it printed none, or nothing that can be judged."""

    name: str
    value: float | None
    text: str | None  # what matched; None: nothing did


def parse_rules(texts: Sequence[str]) -> tuple[ReadingRule, ...]:
    """Read every `--metric`. Raises HprofError for one that names no figure, or whose expression cannot be used."""
    rules = tuple(map(_parse_rule, texts))
    names = [rule.name for rule in rules]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise HprofError(f"--metric gives the name {twice!r} twice; give each figure a name of its own.")
    return rules


def _parse_rule(text: str) -> ReadingRule:
    label, equals, regex = text.partition("=")
    found = _NAME.fullmatch(label.strip())
    if found is None or not (equals and regex):
        raise HprofError(
            f"--metric {text[:_SHOWN]!r} is not NAME=REGEX (letters, digits and ./%_- make a name); write for example "
            "--metric t/s='speed: ([0-9.]+)'."
        )
    name = found["name"].strip()
    if name in FIGURES:
        raise HprofError(f"--metric {name}: that is a figure of hprof's own; give this one another name.")
    rule = ReadingRule(name, regex, _direction(name, found["better"]))
    _check_regex(rule)
    return rule


def _direction(name: str, said: str | None) -> Better:
    """Which way is better, as the user or the unit at the name's end says; guessed it would turn a verdict round."""
    if said is not None:
        return "lower" if said == "lower" else "higher"
    if name.endswith(_RATES):
        return "higher"
    if re.split(r"[^A-Za-z]", name)[-1] in _COSTS:
        return "lower"
    raise HprofError(
        f"--metric {name}: whether more of it is better cannot be told from its name; write {name}:higher=... or "
        f"{name}:lower=..., or end the name with its unit (_ms, _s, _bytes, /s)."
    )


def _check_regex(rule: ReadingRule) -> None:
    if len(rule.regex) > _MAX_REGEX:
        raise HprofError(f"{rule.spelled}: the expression is longer than {_MAX_REGEX} characters; shorten it.")
    try:
        n_groups = re.compile(rule.regex).groups
        _last_match([""], rule)
    except (re.error, RecursionError, OverflowError, pa.ArrowInvalid) as error:
        why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise HprofError(
            f"{rule.spelled} is no regular expression that can be used ({why}); RE2 reads it, which has no "
            "look-around and no back-references."
        ) from error
    if n_groups > 1:
        raise HprofError(f"{rule.spelled} has {n_groups} groups; keep one, around the number, and write (?:...) else.")


def read_figures(done: FinishedProgram, rules: Sequence[ReadingRule]) -> list[Reading]:
    """What the program printed, on either stream (its output counts before its errors).

    Raises HprofError where the search takes too long.
    """
    lines = [*done.errors.splitlines(), *done.output.splitlines()] if rules else []
    matches = [_last_match(lines, rule) for rule in rules]
    return [Reading(rule.name, _number(text), text) for rule, text in zip(rules, matches, strict=True)]


def no_number(rule: ReadingRule, text: str) -> str:
    """What is wrong with what a rule found, and what to do."""
    return f"{rule.spelled} found {text[:_SHOWN]!r}, which is no number that can be judged; put the group around one."


def _last_match(lines: Sequence[str], rule: ReadingRule) -> str | None:
    group = rule.regex if re.compile(rule.regex).groups else f"({rule.regex})"
    began_s = time.monotonic()
    for piece in _pieces_from_the_end(lines):
        column = pa.array(piece, pa.large_string())
        matching = column.filter(pc.match_substring_regex(column, rule.regex))
        if len(matching):
            return str(pc.replace_substring_regex(matching[-1:], f"(?s)^.*?(?:{group}).*$", r"\1")[0])
        if time.monotonic() - began_s > _SEARCH_S:
            raise HprofError(
                f"{rule.spelled} takes longer than {_SEARCH_S:g} s to search what a program printed; write it without "
                "a repetition inside a repetition."
            )
    return None


def _pieces_from_the_end(lines: Sequence[str]) -> Iterator[list[str]]:
    """The lines in order, some at a time, the last ones first."""
    piece, n_letters = list[str](), 0
    for line in reversed(lines):
        if len(line) > _MAX_LINE:
            continue
        if piece and n_letters + len(line) > _PIECE:
            yield piece[::-1]
            piece, n_letters = [], 0
        piece.append(line)
        n_letters += len(line) + 1
    if piece:
        yield piece[::-1]


def _number(text: str | None) -> float | None:
    if text is None or _NUMBER.fullmatch(text.strip()) is None:
        return None
    value = float(text)
    return value if can_be_judged(value) else None
