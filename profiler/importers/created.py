"""When a trace was recorded, where it says so believably."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

_FIRST_NS: Final = 1_420_070_400_000_000_000  # 2015: none of the formats is older, so the clock is not one since 1970
_DAY_NS: Final = 86_400_000_000_000  # how far the recording machine's clock may be ahead of ours


def created_utc(since_1970_ns: int | None) -> str:
    """The manifest's `created_utc`, to the second; empty (unknown) for a time before 2015 or in the future."""
    if since_1970_ns is None or not _FIRST_NS <= since_1970_ns <= time.time_ns() + _DAY_NS:
        return ""
    return datetime.fromtimestamp(since_1970_ns // 10**9, UTC).isoformat()
