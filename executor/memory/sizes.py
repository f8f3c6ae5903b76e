"""Sizes as users write them."""

from __future__ import annotations

import math
import re
from typing import Final

from executor.errors import HprofError

_PREFIXES: Final = ("k", "m", "g", "t")
_UNITS: Final = (
    {"": 1, "b": 1}
    | {f"{prefix}b": 1000**power for power, prefix in enumerate(_PREFIXES, 1)}
    | {f"{prefix}ib": 1024**power for power, prefix in enumerate(_PREFIXES, 1)}
)
_SPELLED: Final = (("GiB", 2**30), ("GB", 10**9), ("MiB", 2**20), ("MB", 10**6), ("KiB", 2**10), ("kB", 10**3))
_MAX_BYTES: Final = 2**62


def parse_bytes(text: str, option: str) -> int:
    """`24GiB`, `500 MB` or a plain number, in bytes. Raises HprofError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    n_bytes = float(match[1]) * _UNITS[match[2]] if match is not None and match[2] in _UNITS else math.inf
    if n_bytes > _MAX_BYTES:
        raise HprofError(
            f"{option} '{text[:80]}' is not a size: write 24GiB (of 2^30 bytes), 24GB (of 10^9) or 500MiB."
        )
    return int(n_bytes)


def spell_bytes(n_bytes: int) -> str:
    """The size in the largest unit that gives it exactly, as `24.5GiB`: `parse_bytes` reads it back."""
    for unit, each in _SPELLED:
        if n_bytes >= each and n_bytes * 10 % each == 0:
            return f"{n_bytes / each:.1f}".removesuffix(".0") + unit
    return f"{n_bytes}B"
