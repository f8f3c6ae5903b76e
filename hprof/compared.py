"""What `hprof.compare` gives: two captures held against each other, for notebooks and scripts."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiler.compare.data import CompareResult
from profiler.plain_text import printable

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, repr=False)
class Compared:
    """B against A. `result` has everything; it shows itself as `hprof compare` prints it."""

    result: CompareResult

    @property
    def cause(self) -> str | None:
        """Where the time went, in a sentence; None where nothing changed, or it is not known."""
        from profiler.compare.leading import cause

        return cause(self.result.changes)

    def failed(self, *, allow_inconclusive: bool = False) -> bool:
        """Whether a limit of `fail_on` says no."""
        return self.result.failed(allow_inconclusive=allow_inconclusive)

    def to_frame(self) -> pd.DataFrame:
        """One row a figure of a cell and arm, the largest change first: medians of A and B, B / A with its interval."""
        import pandas as pd

        columns = ["cell", "arm", "figure", "per", "a", "b", "ratio", "low", "high", "verdict"]
        rows = [
            (change.cell, change.arm, change.figure, change.per, change.a, change.b)
            + ((found.ratio, found.low, found.high) if (found := change.against) is not None else (None, None, None))
            + (change.verdict,)
            for change in self.result.changes
        ]
        frame = pd.DataFrame(rows, columns=columns)
        numbers = ["a", "b", "ratio", "low", "high"]
        frame[numbers] = frame[numbers].astype(float)
        return frame

    def __repr__(self) -> str:
        from rich.console import Console

        from profiler.compare.renderers import print_comparison

        text = io.StringIO()
        print_comparison(self.result, Console(file=text, width=100, markup=False, emoji=False, highlight=False), top=10)
        return printable(text.getvalue().rstrip())

    def _repr_html_(self) -> str:
        from profiler.compare.renderers import leading_table
        from profiler.report.blocks import Block, Lines
        from profiler.report.html import block_html

        blocks: list[Block] = [
            Lines("warning", self.result.warnings),
            leading_table(self.result),
            Lines("answer", [self.cause or ""]),
        ]
        return "\n".join(["<div>", *(line for block in blocks for line in block_html(block)), "</div>"])
