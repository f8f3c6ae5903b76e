"""What the lines above an output say of it: the devices that the program found, and what the author calls the run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_MAX_TITLE: Final = 80
_DEVICE: Final = re.compile(
    r"^\s*Device \d+: (?P<cuda>[^,]+),"  # CUDA and HIP
    r"|^ggml_vulkan: \d+ = (?P<vulkan>[^|]+?)(?: \([^()]*\))?\s*\|"
    r"|^ggml_metal_\w+: GPU name:\s*(?P<metal>.+)$"
)
_HEADING: Final = re.compile(r"^(?:#+|\*\*|=+|-{2,})\s*(?P<text>[^#*=|-][^|]*?)\s*(?:#*|\**|=*|-*)$")
# tells runs apart and says nothing of them
_NUMBER_ONLY: Final = re.compile(r"(?:(?:run|boot|try|attempt|pass|round|test)\s*)?[#.:]?\s*\d+[.:]?", re.IGNORECASE)


def devices_named(lines: Sequence[str]) -> str | None:
    """The devices that the log says were found, as llama-bench's gpu_info has them; null where it names none."""
    found = [match for line in lines if (match := _DEVICE.match(line)) is not None]
    return ", ".join(next(filter(None, match.groups())).strip() for match in found) or None


def title_of(lines: Sequence[str]) -> str | None:
    """The last heading above an output, else the last command line; null where there is neither."""
    headings = [match["text"] for line in lines if (match := _HEADING.match(line.strip())) is not None]
    commands = [
        line.strip().lstrip("$> ") for line in lines if "llama-bench" in line and line.lstrip()[:1] not in '|"{'
    ]
    named = [text for text in (headings or commands) if not _NUMBER_ONLY.fullmatch(text)]
    return named[-1][:_MAX_TITLE] if named else None
