"""Numbers as people write and read them: sizes given on the command line; durations, bytes, rates, shares, ratios and
counts in reports, errors and pages. The only module that spells a unit, so that every surface agrees.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from executor.errors import HprofError

_PREFIXES: Final = ("k", "m", "g", "t")
_UNITS: Final = (
    {"": 1, "b": 1}
    | {f"{prefix}b": 1000**power for power, prefix in enumerate(_PREFIXES, 1)}
    | {f"{prefix}{unit}": 1024**power for power, prefix in enumerate(_PREFIXES, 1) for unit in ("", "ib")}
)
_SPELLED: Final = (("GiB", 2**30), ("GB", 10**9), ("MiB", 2**20), ("MB", 10**6), ("KiB", 2**10), ("kB", 10**3))
_DIGITS: Final = 2  # behind the point, as people write sizes
LARGEST_COUNT: Final = 2**31 - 1
"""Of tokens, layers, experts: tables, kernels and llama.cpp hold such numbers in 32 bits."""
_MAX_BYTES: Final = 2**62
_MAX_NS: Final = 2**53


def parse_bytes(text: str, option: str) -> int:
    """`24GiB`, `24G` (the same), `500 MB` or a plain number, in bytes. Raises HprofError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower(), re.ASCII)
    n_bytes = float(match[1]) * _UNITS[match[2]] if match is not None and match[2] in _UNITS else math.inf
    if n_bytes > _MAX_BYTES:
        raise HprofError(
            f"{option} '{text[:80]}' is not a size: write 24GiB (of 2^30 bytes), 24GB (of 10^9) or 500MiB."
        )
    return int(n_bytes)


def spell_bytes(n_bytes: int) -> str:
    """The size in the largest unit that gives it in few digits, as `24.5GiB`: `parse_bytes` reads it back."""
    for unit, each in _SPELLED:
        for digits in range(_DIGITS + 1):
            figure = f"{n_bytes / each:.{digits}f}"
            if n_bytes >= each and int(float(figure) * each) == n_bytes:
                return figure + unit
    return f"{n_bytes}B"


def parse_ns(text: str, option: str) -> int:
    """`188.5ms`, `2 s`, `40us` or `1500ns` in nanoseconds; 0 needs no unit. Raises HprofError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)?", text.strip().lower(), re.ASCII)
    scale = {unit: each for each, unit in _TIMES} | {"µs": 1e3}
    if match is None or (match[2] is None and float(match[1]) != 0):
        raise HprofError(f"{option} '{text[:80]}' is not a time: write 188.5ms, 2s, 40us or 1500ns.")
    ns = float(match[1]) * scale[match[2] or "ns"]
    if ns > _MAX_NS:
        raise HprofError(f"{option} '{text[:80]}' is longer than any trace; give a time from the trace's first row.")
    return round(ns)


UNKNOWN: Final = "–"

_TIMES: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns"))
_BYTES: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def format_ns(value: float) -> str:
    """Nanoseconds with three significant digits: `71.3 ms`."""
    return _scaled(value, _TIMES)


def format_bytes(value: float) -> str:
    """Bytes in powers of 1024, as llama.cpp and nvidia-smi print memory and tensors: `24 GiB`, `1.50 GiB`. Only rates
    are in powers of 1000 (`format_gb_s`), as links are specified.
    """
    return _scaled(value, _BYTES)


def format_rate(value: float) -> str:
    """A rate without its unit, which stands in the name of the row or column: `38.4`, `1,650`."""
    return _digits(value)


def format_share(value: float) -> str:
    """A share of one as per cent: `71.2 %`."""
    if value == 0:
        return "0 %"
    return f"{value * 100:.{1 if abs(value) < 0.9995 else 0}f} %"


def format_gb_s(value: float) -> str:
    """10^9 bytes a second, which is also bytes a nanosecond: `24.1 GB/s`."""
    return f"{_digits(value)} GB/s"


def format_left(left_s: float) -> str:
    """What is left of a run, no finer than people plan by: `40 s left`, `3 min left`, `2 h left`."""
    size_s, unit = next(((size, unit) for size, unit in ((3600, "h"), (60, "min")) if left_s >= size), (1, "s"))
    return f"{max(left_s / size_s, 1):.0f} {unit} left"


_FORMATS: Final[dict[str, Callable[[float], str]]] = {
    "ns": format_ns,
    "bytes": format_bytes,
    "tokens/s": format_rate,
    "share": format_share,
    "GB/s": format_gb_s,
    "number": format_rate,
}


_SCALES: Final[dict[str, tuple[tuple[float, str], ...]]] = {
    "ns": _TIMES,
    "bytes": _BYTES,
    "share": ((0.01, "%"),),
    "tokens/s": ((1, "t/s"),),
    "GB/s": ((1, "GB/s"),),
    "number": ((1, ""),),
}


def column_scale(largest: float, unit: str) -> tuple[float, str]:
    """By how much to divide the numbers of a column or an axis that go up to `largest`, and the unit for its title:
    `(1e6, "ms")`; of shares `(0.01, "%")`.
    """
    scales = _SCALES[unit]
    return next(((size, name) for size, name in scales if largest >= size), scales[-1])


def format_value(value: float | None, unit: str) -> str:
    """By the unit of a Figure (`ns`, `bytes`, `tokens/s`, `share`, `number`) or `GB/s`; UNKNOWN for None."""
    return UNKNOWN if value is None else _FORMATS[unit](value)


def format_in_words(value: float | None, unit: str) -> str:
    """As `format_value`, for a sentence, where no row's name tells the unit: `1,650 t/s`, `unknown`."""
    if value is None:
        return "unknown"
    return f"{format_value(value, unit)}{' t/s' if unit == 'tokens/s' else ''}"


def format_interval(value: float, low: float | None, high: float | None, unit: str) -> str:
    """An estimate and its interval, where it has one and its ends read apart: `71.3 ms [70.1 ms, 72.0 ms]`."""
    middle = format_value(value, unit)
    if low is None or high is None:
        return middle
    ends = format_value(low, unit), format_value(high, unit)
    return middle if ends[0] == ends[1] else f"{middle} [{', '.join(ends)}]"


_NEAR_ONE: Final = 0.05  # closer to 1 a third decimal tells a small effect from none


def format_factor(factor: float) -> str:
    """How many times as fast, or as many: `10.7`, `1.46`, `0.987`."""
    if abs(factor - 1) < _NEAR_ONE:
        return f"{factor:.3f}"
    return f"{factor:.{2 if factor < 9.995 else 1}f}" if factor < 99.95 else f"{factor:,.0f}"


_MANY_TIMES: Final = 3  # from here on per cents are harder to read than a factor


def format_change(ratio: float) -> str:
    """A ratio as a change: `+3.1 %`, `-12.0 %`, `x 23.2`; `from 0` where it is infinite."""
    if math.isinf(ratio):
        return "from 0"
    return f"x {format_factor(ratio)}" if ratio >= _MANY_TIMES else f"{(ratio - 1) * 100:+.1f} %"


def format_count(number: int, noun: str) -> str:
    """`1 copy`, `12 copies`, `1,200 launches`."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith(("ch", "s")) else f"{noun}s"
    return f"{number:,} {plural}"


def number_ranges(numbers: Sequence[int]) -> str:
    """`0-2, 5` for 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def shortened(text: str, most: int) -> str:
    """The text, cut to so many characters where it has more; the last is then `…`."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def listed(words: Iterable[str], last: str = "and") -> str:
    """`off, on and hot`, or with another word before the last one."""
    *rest, final = list(words) or [""]
    return f"{', '.join(rest)} {last} {final}" if rest else final


def _scaled(value: float, scales: tuple[tuple[float, str], ...]) -> str:
    # 999.6 us would round to "1000 us": the next unit starts half a digit early.
    size, unit = next(((s, u) for s, u in scales if abs(value) >= s * 0.9995), scales[-1])
    if value % size == 0 and (scales is _BYTES or size == 1):  # a round size; a whole number of ns
        return f"{value / size:,.0f} {unit}"
    return f"{_digits(value / size)} {unit}"


def _digits(value: float) -> str:
    """Three significant digits, all digits above a hundred."""
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.{2 if abs(value) < 9.995 else 1}f}" if abs(value) >= 0.9995 else f"{value:.3g}"
