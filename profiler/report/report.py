"""A report as plain data, and the one list of its sections: each says what it shows, as blocks that terminal, Markdown
and HTML draw, and what JSON has of it. A further section is a further entry of SECTIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from executor.units import format_gb_s
from profiler.findings import Finding
from profiler.manifest import ManifestArm
from profiler.metrics import DeviceFigures
from profiler.metrics.ordering import Ordering
from profiler.ordering.check import CheckResult
from profiler.plain_text import printable
from profiler.report.blocks import (
    ON_A_PAGE,
    Block,
    FindingList,
    Heading,
    Lines,
    Listing,
    Room,
    cell_blocks,
    device_blocks,
    residency_table,
    same_work_block,
)
from profiler.report.cells import Cell
from profiler.report.from_which_size import crossover_lines
from profiler.report.html import block_html
from profiler.report.measured import UNTOLD, Provenance
from profiler.report.noticed import Noticed
from profiler.report.plain_values import (
    arm_as_json,
    cell_as_json,
    device_as_json,
    finding_as_json,
    number,
    report_frame,
)
from profiler.report.residency import Residency, products_line
from profiler.report.sweep import ArmCrossover, all_crossovers

if TYPE_CHECKING:
    import pandas as pd

REPORT_SCHEMA: Final = 1
_CELLS_NAMED: Final = 6


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """Everything that `hprof report` shows of one capture."""

    capture: str  # the capture's address
    state: str
    source: str
    baseline: str | None
    model: str | None
    machine: str | None
    created_utc: str | None
    link_h2d_gb_s: float | None  # measured ceiling of host to device copies
    arms: list[ManifestArm]  # requested and effective policies
    cells: list[Cell]
    devices: list[DeviceFigures]
    findings: Sequence[Finding]
    warnings: list[str]
    faults: list[str]  # those of `warnings` without which no figure is to be read
    notes: list[str]  # what is approximated
    cannot_say: list[str]
    dropped: dict[str, int]  # rows of the source that were left out, by reason
    has_unrecorded_copies: bool = False  # whether the host asked for copies that the source does not hold
    residency: dict[str, Residency] = field(default_factory=dict)  # by arm, where the capture says
    budgets: list[str] = field(default_factory=list)  # what `--vram-budget` left for weights, in words
    recorded: list[str] = field(default_factory=list)  # what a recording beside the timed runs saw, in lines
    engine: list[str] = field(default_factory=list)  # another engine's build, and the placement it was asked for
    ordering: Ordering | None = None  # whether the intervals keep their order; None: not looked at
    check: CheckResult | None = None  # of what was issued; None: not recorded, or not looked at
    noticed: Noticed | None = None  # of a fault that was injected; None: none was
    summary: str = ""  # the closing paragraph, in plain words
    measured: Provenance = UNTOLD  # whether it was timed at all, of what and on what, for the first line
    argv: list[str] = field(default_factory=list)  # the command that made the capture

    @property
    def crossovers(self) -> list[ArmCrossover]:
        """Where each arm crosses the baseline."""
        return all_crossovers(self.cells)

    def __repr__(self) -> str:
        cells = ", ".join(cell.named() or "one cell" for cell in self.cells[:_CELLS_NAMED]) or "no cells"
        return printable(f"<report of {self.capture}, {self.state}: {cells}. {self.summary}>")

    def _repr_html_(self) -> str:
        """For notebooks: every section, as the page of `hprof export` has it."""
        drawn = (line for found in blocks(self).values() for block in found for line in block_html(block))
        return "\n".join(["<div>", *drawn, "</div>"])

    def to_frame(self) -> pd.DataFrame:
        """One row a figure of an arm in a cell and phase (`pass`, `prefill`, `decode`): its median with the interval,
        and of the whole pass's judged figures the ratio to the baseline, its interval and the verdict.
        """
        return report_frame(self.cells)

    def to_json(self) -> dict[str, Any]:
        """The JSON contract of `hprof report --json` (schema 1) as plain dicts; no NaN, no infinity."""
        found = {key: value for section in SECTIONS for key, value in section.as_json(self).items()}
        return {key: found.pop(key) for key in _FIRST_KEYS} | found


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a report."""

    name: str  # by which a renderer moves it, or leaves it out
    blocks: Callable[[Report, Room], Iterable[Block]]  # what people see; nothing where there is nothing to say
    as_json: Callable[[Report], dict[str, Any]]  # its keys of the JSON contract


def blocks(report: Report, room: Room = ON_A_PAGE) -> dict[str, list[Block]]:
    """What each section shows, by its name, in the order to show them."""
    return {section.name: list(section.blocks(report, room)) for section in SECTIONS}


def told_blocks(report: Report, room: Room = ON_A_PAGE) -> Iterator[Block]:
    """All blocks in order, but for the devices where there are cells, which say more."""
    for name, found in blocks(report, room).items():
        if name != "devices" or not report.cells:
            yield from found


def reports_as_json(reports: Sequence[Report], problems: Sequence[str]) -> dict[str, Any]:
    """Several reports as plain dicts; `problems` are the captures that could not be read, a sentence each."""
    return {"schema": REPORT_SCHEMA, "reports": [report.to_json() for report in reports], "problems": problems}


def _facts(report: Report, _room: Room) -> Iterator[Block]:
    """What was measured, where, and which policies served it."""
    link = format_gb_s(report.link_h2d_gb_s) if report.link_h2d_gb_s else None
    parts = {"model": report.model, "machine": report.machine, "link, host to device": link, "source": report.source}
    lines = ["; ".join(f"{name}: {value}" for name, value in parts.items() if value)]
    lines = [*_unmeasured(report.measured), *lines]
    lines += [f"Routing: {report.measured.routing}."] if report.measured.routing else []
    served = [f"{arm.name} ran as {arm.effective}" for arm in report.arms if arm.effective not in (None, arm.requested)]
    lines += [f"Requested and effective policy differ: {'; '.join(served)}."] if served else []
    decode = _decode_line(report)
    lines += [decode] if decode else []
    on_host = products_line(report.arms)
    yield Lines("fact", [*lines, *report.engine, *report.recorded, *report.budgets, *([on_host] if on_host else [])])


_DECODE: Final = {
    "hprof": "one sequence, greedy, token after token, from the first token's being known on the host to the last's; "
    "sampling and each token's copy to the host are included",
    "llama-bench": "its tg test, token after token of one sequence, random ones: nothing is sampled",
}
"""What decode measures, by the source of a capture."""


def _decode_line(report: Report) -> str | None:
    """What is measured as decode; None where nothing was decoded, or the source does not say."""
    decodes = any(arm.figures["pass"].get("decode_tokens_per_s") for cell in report.cells for arm in cell.arms.values())
    return f"Decode: {_DECODE[report.source]}." if decodes and report.source in _DECODE else None


def _unmeasured(measured: Provenance) -> Iterator[str]:
    """That nothing was timed, and what the figures rest on instead."""
    if measured.is_exact:
        yield measured.line()
        if (rates := measured.rates_line()) is not None:
            yield rates
    elif measured.is_untimed:
        yield f"{measured.line()} It was recorded beside runs that were timed; its own times are not to be taken."


def _facts_as_json(report: Report) -> dict[str, Any]:
    return {
        "source": report.source,
        "baseline": report.baseline,
        "model": report.model,
        "machine": report.machine,
        "created_utc": report.created_utc,
        "link_h2d_gb_s": number(report.link_h2d_gb_s),
        "arms": [arm_as_json(arm, report.residency.get(arm.name)) for arm in report.arms],
        "budgets": report.budgets,
        "engine": report.engine,
        "recorded": report.recorded,
        "measured": report.measured.to_json(),
    }


def _cells(report: Report, room: Room) -> Iterator[Block]:
    load = report.measured.load_told() if report.measured.is_loaded else None
    for cell in report.cells:
        yield from cell_blocks(cell, room, load)
    yield same_work_block(report.cells)
    yield Listing("Crossovers", crossover_lines(report.crossovers))


def _ordering(report: Report, _room: Room) -> Iterator[Block]:
    if report.ordering is not None:
        line = report.ordering.line()
        is_fault = report.ordering.is_clean is False
        yield Lines("fault" if is_fault else "note", [f"{line[0].upper()}{line[1:]}."])
    if report.check is not None:
        yield Lines("note" if report.check.is_clean else "fault", [f"{report.check.line()}."])
    if report.noticed is not None:
        yield Lines("fault", [f"{report.noticed.line()}."])


def _dropped(report: Report, _room: Room) -> Iterator[Block]:
    yield Listing("Rows left out", [f"{count:,}: {reason}" for reason, count in report.dropped.items()])


SECTIONS: Final = (
    Section(
        "heading",
        lambda report, _: [Heading(report.capture, report.state)],
        lambda report: {"schema": REPORT_SCHEMA, "capture": report.capture, "state": report.state},
    ),
    Section("facts", _facts, _facts_as_json),
    Section(
        "warnings",
        lambda report, _: [Lines("warning", report.warnings)],
        lambda report: {"warnings": report.warnings},
    ),
    Section("memory", lambda report, _: residency_table(report.residency), lambda _: {}),  # in "arms" of the facts
    Section(
        "cells",
        _cells,
        lambda report: {
            "cells": [cell_as_json(cell) for cell in report.cells],
            "crossovers": [found.to_json() for found in report.crossovers],
        },
    ),
    Section(
        "devices",
        lambda report, room: device_blocks(report.devices, room),
        lambda report: {
            "devices": [device_as_json(one, tells_copies=not report.has_unrecorded_copies) for one in report.devices]
        },
    ),
    Section(
        "ordering",
        _ordering,
        lambda report: {
            "ordering": report.ordering.to_json() if report.ordering is not None else None,
            "check": report.check.to_json() if report.check is not None else None,
            "injected": report.noticed.to_json() if report.noticed is not None else None,
        },
    ),
    Section(
        "cannot_say",
        lambda report, _: [Listing("The source could not say", report.cannot_say)],
        lambda report: {"cannot_say": report.cannot_say},
    ),
    Section("dropped", _dropped, lambda report: {"dropped": report.dropped}),
    Section(
        "notes",
        lambda report, _: [Listing("Approximated", report.notes)],
        lambda report: {"notes": report.notes},
    ),
    Section(
        "findings",
        lambda report, _: [FindingList(report.findings)],
        lambda report: {"findings": [finding_as_json(finding) for finding in report.findings]},
    ),
    Section(
        "summary",
        lambda report, _: [Lines("summary", [report.summary] if report.summary else [])],
        lambda report: {"summary": report.summary},
    ),
)

# the order that JSON has had since its first version; what is added comes after
_FIRST_KEYS: Final = (
    *("schema", "capture", "state", "source", "baseline", "model", "machine", "created_utc", "link_h2d_gb_s", "arms"),
    *("cells", "devices", "findings", "warnings", "notes", "cannot_say", "dropped", "budgets", "summary"),
)
