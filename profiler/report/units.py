"""Numbers as people read them; one place, so that every page and table spells them alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_TIMES: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns"))
_BYTES: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


def format_ns(value: float) -> str:
    """Nanoseconds with three significant digits: `71.3 ms`."""
    return _scaled(value, _TIMES)


def format_bytes(value: float) -> str:
    """Bytes in powers of 1000, as links and files are sold: `1.23 GB`."""
    return _scaled(value, _BYTES)


def format_rate(value: float) -> str:
    """Tokens a second: `38.4`, `1,650`."""
    return _digits(value)


def format_share(value: float) -> str:
    """A share of one as per cent: `71.2 %`."""
    if value == 0:
        return "0 %"
    return f"{value * 100:.{1 if abs(value) < 0.9995 else 0}f} %"


def format_gb_s(value: float) -> str:
    """10^9 bytes a second: `24.1 GB/s`."""
    return f"{_digits(value)} GB/s"


def format_value(value: float, unit: str) -> str:
    """By the unit of a Figure."""
    formats = {"ns": format_ns, "bytes": format_bytes, "tokens/s": format_rate, "share": format_share}
    return formats[unit](value)


def number_ranges(numbers: Sequence[int]) -> str:
    """`0-2, 5` for 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def plain(text: str) -> str:
    """Text from a file on one line, without the control characters that could steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def _scaled(value: float, scales: tuple[tuple[float, str], ...]) -> str:
    # 999.6 us would round to "1000 us": the next unit starts half a digit early.
    size, unit = next(((s, u) for s, u in scales if abs(value) >= s * 0.9995), scales[-1])
    return f"{_digits(value / size)} {unit}"


def _digits(value: float) -> str:
    """Three significant digits, all digits above a hundred."""
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.{2 if abs(value) < 9.995 else 1}f}" if abs(value) >= 0.9995 else f"{value:.3g}"
