"""A report as one HTML file: tables, verdicts, findings and a timeline. It loads nothing and sends nothing.

The page's policy allows no request at all and only its own script, by hash; every text of the capture is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

import orjson

from profiler.export.page_timeline import page_timeline
from profiler.export.tracks import Track
from profiler.report.report import Report
from profiler.report.tables import (
    Table,
    by_device_table,
    cell_tables,
    device_tables,
    header_lines,
    reasons_line,
    residency_table,
    sameness_line,
)

_VERDICTS: Final = ("faster", "slower", "no difference", "inconclusive")


def render_html(report: Report, tracks: Sequence[Track]) -> str:
    """The page; `tracks` are the passes of its timeline."""
    style, script = (
        files("profiler.export.page").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    title = escape(f"hprof: {report.capture.rstrip('/').rsplit('/', 1)[-1]}")
    body = "\n".join(_sections(report, page_timeline(tracks)))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{title}</title>\n<style>\n{style}</style>\n'
        f"</head>\n<body>\n<main>\n{body}\n</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _sections(report: Report, timeline: dict[str, Any]) -> Iterator[str]:
    yield f"<h1>{escape(report.capture.rstrip('/').rsplit('/', 1)[-1])} <small>{escape(report.state)}</small></h1>"
    yield from (f'<p class="facts">{escape(line)}</p>' for line in header_lines(report) if line)
    yield from (f'<p class="warning">{escape(text)}</p>' for text in report.warnings)
    yield f'<p class="summary">{escape(report.summary)}</p>'
    yield from _findings(report)
    yield from map(_table, filter(None, [residency_table(report)]))
    for cell in report.cells:
        yield from map(_table, [*cell_tables(cell), *filter(None, [by_device_table(cell)])])
        yield from (f'<p class="note">{escape(line)}</p>' for line in (reasons_line(cell), sameness_line(cell)) if line)
    if timeline["tracks"]:
        yield _timeline(timeline)
    yield from map(_table, device_tables(report.devices))
    yield from _list("The source could not say", report.cannot_say)
    yield from _list("Rows left out", (f"{count:,}: {reason}" for reason, count in report.dropped.items()))
    yield from _list("Approximated", report.notes)


def _findings(report: Report) -> Iterator[str]:
    if report.findings:
        yield "<h2>What to change</h2>"
    for finding in report.findings:
        yield (
            f'<div class="finding {escape(finding.severity, quote=True)}"><b>{escape(finding.severity)}: '
            f"{escape(finding.rule)}</b><p>{escape(finding.evidence)}</p><p>{escape(finding.advice)}</p></div>"
        )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = "".join(f"<tr{_class_of(row)}>{''.join(map(_cell, row))}</tr>\n" for row in table.rows)
    return f"<h2>{escape(table.title)}</h2>\n<table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>"


def _class_of(row: Sequence[str]) -> str:
    return ' class="against"' if row and row[0].startswith("  ") else ""


def _cell(text: str) -> str:
    verdict = next((name for name in _VERDICTS if text.endswith(name)), None)
    css = f' class="{verdict.replace(" ", "-")}"' if verdict else ""
    return f"<td{css}>{escape(text.strip())}</td>"


def _timeline(timeline: dict[str, Any]) -> str:
    merged = [track for track in timeline["tracks"] if track["n_slices"] < track["n_rows"]]
    note = "".join(
        f'<p class="note">{escape(track["title"])}: {track["n_rows"]:,} events are drawn as {track["n_slices"]:,} '
        "slices; neighbours too close to tell apart are one slice.</p>"
        for track in merged
    )
    data = orjson.dumps(timeline).decode().replace("<", "\\u003c")
    return (
        "<h2>Timeline</h2>\n"
        '<p class="note">Each pass starts at zero. Scroll or W and S zoom, drag or A and D move, double-click '
        f'shows all.</p>\n{note}<div id="timeline" tabindex="0"><canvas role="img" aria-label="Timeline: one lane '
        'for each kind of work of each pass; the tables on this page hold its figures."></canvas>'
        '<div id="tip" hidden></div></div>\n'
        f'<script type="application/json" id="timeline-data">{data}</script>'
    )


def _list(title: str, lines: Iterable[str]) -> Iterator[str]:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    if items:
        yield f"<h2>{escape(title)}</h2>\n<ul>{items}</ul>"
