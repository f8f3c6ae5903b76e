"""What a text of llama-bench's rows gives: the rows as they stand there, and what was left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal

from profiler.importers.llama_bench.md import RawRow

Format = Literal["json", "jsonl", "csv", "sql", "md"]

UNREADABLE: Final = "rows that cannot be read"


@dataclass(slots=True)
class ParsedRows:
    """The rows of one text, and how many were left out, by reason."""

    format: Format  # of the first rows
    rows: list[RawRow] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    truncated: bool = False
    unshared: frozenset[str] = frozenset()  # fields that only some of the text's formats have

    def add(self, other: ParsedRows) -> None:
        """Append what a further output in the same text holds."""
        self.rows += other.rows
        self.dropped += other.dropped
        self.truncated |= other.truncated
