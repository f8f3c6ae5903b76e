"""Settings of a manifest as people read them: names in words, sizes with their unit, layers as ranges."""

from __future__ import annotations

import re
from typing import Any, Final

from executor.units import UNKNOWN, format_bytes, shortened
from profiler.compare.settings import setting_text

_WORDS: Final = {
    "effective.slots": "slots for streamed weights",
    "effective.streams_ahead": "copies ahead of compute",
    "effective.vram_slots": "memory of the slots",
    "effective.vram_bank": "memory of the expert cache's bank",
    "effective.vram_resident": "memory of weights that stay",
    "effective.host_bytes": "weights in host memory",
    "effective.host_layers": "layers with weights in host memory",
    "effective.load_mode": "how host memory is held",
}
_OF_AN_ARM: Final = re.compile(r"arm( \d+)?\.options\.(.+)")
_MAX_TEXT: Final = 300
_GROUPED_FROM: Final = 10_000  # years and ports read badly with a comma in them


def setting_name(key: str) -> str:
    """`memory of the slots` for `effective.vram_slots` and for `arm.options.effective.vram_slots`; of the second of
    several arms `arm 2: memory of the slots`; a setting that has no words keeps its key.
    """
    found = _OF_AN_ARM.fullmatch(key)
    if found is None or found[2] not in _WORDS:
        return _WORDS.get(key, key)
    return f"arm{found[1]}: {_WORDS[found[2]]}" if found[1] else _WORDS[found[2]]


def setting_value(key: str, value: Any) -> str:
    """One line; UNKNOWN for None."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        is_size = re.search(r"(\.|_)bytes$|\.vram_\w+$", key) is not None
        return format_bytes(value) if is_size else f"{value:,}" if abs(value) >= _GROUPED_FROM else str(value)
    return shortened(setting_text(key, value), _MAX_TEXT)
