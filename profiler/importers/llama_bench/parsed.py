"""What every format's parser gives back: rows as name -> value, values as the format spells them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Format = Literal["json", "jsonl", "csv", "sql", "md"]
RawRow = dict[str, Any]

UNREADABLE: Final = "rows that cannot be read"


@dataclass(slots=True)
class Parsed:
    """The rows of one file, and how many were left out, by reason."""

    format: Format
    rows: list[RawRow] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    truncated: bool = False
