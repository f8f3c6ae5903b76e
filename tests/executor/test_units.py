"""Each kind of number has one spelling."""

from __future__ import annotations

import math
import re

import pytest

from executor import units
from executor.errors import HprofError
from tests.support import ROOT

_DECIMAL = re.compile(r"(?:\d |\"|\| )[GMk]B\b(?!/s)")  # "1.5 GB", a column's "MB"; not `24GB`, which options take


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        (units.format_ns(0), "0 ns"),
        (units.format_ns(999), "999 ns"),
        (units.format_ns(12.5), "12.5 ns"),
        (units.format_ns(1_000), "1.00 us"),
        (units.format_ns(999_600), "1.00 ms"),
        (units.format_ns(71_340_000), "71.3 ms"),
        (units.format_ns(12_345_000_000), "12.3 s"),
        (units.format_ns(123_456_000_000), "123 s"),
        (units.format_bytes(25_475_253_792), "23.7 GiB"),
        (units.format_bytes(12), "12 B"),
        (units.format_bytes(24 * 2**30), "24 GiB"),
        (units.format_bytes(1.5 * 2**30), "1.50 GiB"),
        (units.format_bytes(1000), "1,000 B"),
        (units.format_rate(1650.4), "1,650"),
        (units.format_rate(0.0312), "0.0312"),
        (units.format_gb_s(24.13), "24.1 GB/s"),
        (units.format_share(0.7123), "71.2 %"),
        (units.format_share(1.0), "100 %"),
        (units.format_share(0), "0 %"),
        (units.format_value(None, "ns"), "–"),
        (units.format_value(1650.4, "tokens/s"), "1,650"),
        (units.format_in_words(1650.4, "tokens/s"), "1,650 t/s"),
        (units.format_in_words(None, "bytes"), "unknown"),
        (units.format_interval(71_340_000, 70_000_000, 72_000_000, "ns"), "71.3 ms [70.0 ms, 72.0 ms]"),
        (units.format_interval(71_340_000, None, None, "ns"), "71.3 ms"),
        (units.format_interval(71_340_000, 71_340_000, 71_340_001, "ns"), "71.3 ms"),
        (units.format_change(1.031), "+3.1 %"),
        (units.format_change(0.88), "-12.0 %"),
        (units.format_change(1200), "x 1,200"),
        (units.format_change(23.244), "x 23.2"),
        (units.format_change(math.inf), "from 0"),
        (units.format_count(1, "copy"), "1 copy"),
        (units.format_count(1200, "copy"), "1,200 copies"),
        (units.format_count(2, "launch"), "2 launches"),
        (units.format_count(2, "pass"), "2 passes"),
        (units.format_count(0, "kernel"), "0 kernels"),
        (units.listed(["off"]), "off"),
        (units.listed(["off", "on", "hot"]), "off, on and hot"),
        (units.listed([]), ""),
        (units.number_ranges([0, 1, 2, 5]), "0-2, 5"),
    ],
)
def test_numbers_as_people_read_them(spelled: str, expected: str) -> None:
    assert spelled == expected


@pytest.mark.parametrize(("text", "ns"), [("0", 0), ("188.5ms", 188_500_000), ("2 s", 2 * 10**9), ("40us", 40_000)])
def test_times_are_read(text: str, ns: int) -> None:
    assert units.parse_ns(text, "--range") == ns


@pytest.mark.parametrize("text", ["5", "-1ms", "1e3ms", "2h", "", "99999999999s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(HprofError, match="--range"):
        units.parse_ns(text, "--range")


@pytest.mark.parametrize("pattern", ["README.md", "docs/*.md", "dashboard/**/*.js", "profiler/**/*.js"])
def test_amounts_are_in_powers_of_1024_everywhere(pattern: str) -> None:
    """What people read says GiB, as `format_bytes` does; rates alone are in GB/s."""
    pages = list(ROOT.glob(pattern))
    said = [(page.name, found[0]) for page in pages for found in _DECIMAL.finditer(page.read_text(encoding="utf-8"))]
    assert pages
    assert not said


def test_text_is_cut_where_it_is_longer() -> None:
    assert [units.shortened("abcd", most) for most in (5, 4, 3, 1)] == ["abcd", "abcd", "ab…", "…"]
