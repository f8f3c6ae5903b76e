"""Draws a report's blocks as HTML: for the page that `hprof export` writes, and for notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from profiler.findings import Finding
from profiler.report.blocks import Block, FindingList, Heading, Lines, Listing, Table

_VERDICTS: Final = ("faster", "slower", "no difference", "inconclusive")


def block_html(block: Block) -> Iterator[str]:
    """A block as lines of HTML. Text of the capture is escaped, and never becomes markup."""
    match block:
        case Heading(capture, state):
            yield f"<h1>{escape(capture.rstrip('/').rsplit('/', 1)[-1])} <small>{escape(state)}</small></h1>"
        case Lines(kind, lines):
            yield from (f'<p class="{kind}">{escape(line)}</p>' for line in lines if line)
        case Listing(title, lines):
            if lines:
                items = "".join(f"<li>{escape(line)}</li>" for line in lines)
                yield f"<h2>{escape(title)}</h2>\n<ul>{items}</ul>"
        case FindingList(findings):
            if findings:
                yield "<h2>What to change</h2>"
            yield from map(_finding, findings)
        case Table():
            yield _table(block)


def _finding(finding: Finding) -> str:
    return (
        f'<div class="finding {escape(finding.severity, quote=True)}"><b>{escape(finding.severity)}: '
        f"{escape(finding.rule)}</b><p>{escape(finding.evidence)}</p><p>{escape(finding.advice)}</p></div>"
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = "".join(f"<tr{_class_of(row)}>{''.join(map(_cell, row))}</tr>\n" for row in table.rows)
    title = f"<h2>{escape(table.title)}</h2>\n" if table.title else ""
    return f"{title}<table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>"


def _class_of(row: Sequence[str]) -> str:
    return ' class="against"' if row and row[0].startswith("  ") else ""


def _cell(text: str) -> str:
    verdict = next((name for name in _VERDICTS if text.endswith(name)), None)
    css = f' class="{verdict.replace(" ", "-")}"' if verdict else ""
    return f"<td{css}>{escape(text.strip())}</td>"
