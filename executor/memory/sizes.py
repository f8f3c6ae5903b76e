"""A size as a user writes it."""

from __future__ import annotations

import math
import re
from typing import Final

from executor.errors import HprofError

_UNITS: Final = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_MAX_BYTES: Final = 2**62


def parse_bytes(text: str, option: str) -> int:
    """`24GiB`, `500 MB` or a plain number, in bytes. Raises HprofError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    n_bytes = float(match[1]) * _UNITS[match[2]] if match is not None and match[2] in _UNITS else math.inf
    if n_bytes > _MAX_BYTES:
        raise HprofError(f"{option} '{text[:80]}' is not a size: write it as 24GiB, 500MiB or a number of bytes")
    return int(n_bytes)
