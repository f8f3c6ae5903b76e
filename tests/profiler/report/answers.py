"""The first screen of a report as text."""

from __future__ import annotations

import io

from rich.console import Console

from profiler.report.report import Report
from profiler.report.terminal import print_answer


def answer(report: Report, width: int = 80) -> str:
    out = io.StringIO()
    print_answer(report, Console(file=out, width=width))
    return out.getvalue()


def joined(report: Report) -> str:
    """The answer as one line, wherever it was wrapped."""
    return " ".join(answer(report).split())
