"""Figures as people read them."""

from __future__ import annotations


def duration(ns: float) -> str:
    """`920.9 ms`, `38.4 us`, `12.31 s`."""
    if ns == 0:
        return "0 ms"
    for limit, unit, size in ((1e3, "ns", 1.0), (1e6, "us", 1e3), (1e9, "ms", 1e6)):
        if abs(ns) < limit:
            return f"{ns / size:.0f} {unit}" if unit == "ns" else f"{ns / size:.1f} {unit}"
    return f"{ns / 1e9:.2f} s"


def size(n_bytes: float) -> str:
    """Decimal units, as link rates are: `25.5 GB`, `1.1 MB`."""
    for limit, unit, scale in ((1e3, "B", 1.0), (1e6, "kB", 1e3), (1e9, "MB", 1e6)):
        if n_bytes < limit:
            return f"{n_bytes:.0f} B" if unit == "B" else f"{n_bytes / scale:.1f} {unit}"
    return f"{n_bytes / 1e9:.1f} GB"


def rate(n_bytes: float, ns: float) -> str:
    """`27.7 GB/s`."""
    return f"{n_bytes / ns:.1f} GB/s" if ns > 0 else "an unknown rate"


def share(part: float, whole: float) -> str:
    """`12.3 %`."""
    return f"{100 * part / whole:.1f} %" if whole > 0 else "0.0 %"


def count(number: int, noun: str) -> str:
    """`1 copy`, `12 copies`, `2 launches`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
