"""Reports as JSON text."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from profiler.report.report import REPORT_SCHEMA, Report


def render_json(report: Report) -> str:
    """Indented JSON text."""
    return orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2).decode()


def render_many(reports: Sequence[Report], problems: Sequence[str]) -> str:
    """Several reports as indented JSON text; `problems` are the captures that could not be read, a sentence each."""
    found = {"schema": REPORT_SCHEMA, "reports": [report.to_json() for report in reports], "problems": problems}
    return orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()
