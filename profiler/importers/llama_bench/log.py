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
# rows of any format, a fence, the build, progress, what llama.cpp logs, and what `time` prints
_PRINTED: Final = re.compile(
    r"[|{}\]]|\[$|\[\s*\d+(?:/\d+|\s*%)\]|\"\w+\"[:,]|(?:[^,]*,){8}|```|build: |[\W\d]+$"
    r"|~?(?:ggml|gguf|llama|llm|load|print|common|register|sched)\w*\s*:|(?:warning|error|main|system_info)\s*: "
    r"|Device \d+: .*,|(?:real|user|sys)\s+\d+m"
)
_TAG: Final = re.compile(r"<[^>]*>")


def devices_named(lines: Sequence[str]) -> str | None:
    """The devices that the log says were found, as llama-bench's gpu_info has them; null where it names none."""
    found = [match for line in lines if (match := _DEVICE.match(line)) is not None]
    return ", ".join(next(filter(None, match.groups())).strip() for match in found) or None


def title_of(lines: Sequence[str]) -> str | None:
    """What stands above an output: its heading, and the author's last line below that; without both the last command.

    A line above another table is that table's. Null where there is nothing, or a number alone.
    """
    heading: str | None = None
    line_above: str | None = None
    command: str | None = None
    for line in map(str.strip, lines):
        if (match := _HEADING.match(line)) is not None:
            heading, line_above = match["text"], None
        elif line.startswith("|"):
            line_above = None
        elif "llama-bench" in line and line[:1] not in '|"{':
            command = line.lstrip("$> ")
        elif text := _authors_text(line):
            line_above = text
    said = [text for text in (heading, line_above) if text] or [command or ""]
    return ": ".join(text for text in said if not _NUMBER_ONLY.fullmatch(text))[:_MAX_TITLE] or None


def _authors_text(line: str) -> str:
    """The line without its marks (`GPU 0` for "- **GPU 0**:"); nothing for what a program printed, and for rows."""
    if _PRINTED.match(line) is not None:
        return ""
    return _TAG.sub("", line).strip("`*_~=-+>#: ")
