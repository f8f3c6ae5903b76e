"""The first screen: what was measured, which arm pays from which size, a small table, what it costs and why, what to
set, and where the rest is. Blocks as any report's, for as much room as a renderer has.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from executor.units import (
    format_bytes,
    format_count,
    format_factor,
    format_ns,
    format_share,
    format_value,
    listed,
)
from profiler.arithmetic.stats import Comparison
from profiler.metrics import FIGURES
from profiler.report.blocks import Block, Heading, Lines, Table
from profiler.report.cells import Cell, telling_cell
from profiler.report.from_which_size import from_which_size
from profiler.report.report import Report
from profiler.report.sensitivity import told_sensitivity
from profiler.report.settings_to_use import told_settings
from profiler.report.shown_cells import (
    best_and_worst,
    by_speed,
    shown_arms,
    shown_cells,
    telling_figure,
    told_comparison,
    varied_keys,
)
from profiler.report.summary import summarise
from profiler.report.sweep import ArmCrossover
from profiler.report.verdicts import (
    as_fast,
    bounds_as_fast,
    command_for_verdict,
    factor_range,
    missing_line,
    told_as_fast,
    told_factor,
    verdict_word,
)

_ACTIVATIONS: Final = 0.1  # of an arm's bytes that are weights


@dataclass(frozen=True, slots=True)
class AnswerRoom:
    """How much the screen has room for."""

    cells: int = 8  # rows of the table
    arms: int = 4  # beside the baseline
    told: int = 4  # arms with sentences of their own


ANSWER_ROOMS: Final = (
    *(AnswerRoom(cells, 4, 4) for cells in (8, 7, 6, 5)),
    *(AnswerRoom(4, 4, told) for told in (4, 3, 2)),
    *(AnswerRoom(3, arms, 1) for arms in (4, 3, 2)),
)
"""From the widest to the tightest; the first that fits is drawn."""


def answer_blocks(report: Report, room: AnswerRoom) -> Iterator[Block]:
    """The blocks in order; without cells, what the devices did."""
    if report.state != "complete":
        yield Heading(report.capture, report.state)
    yield Lines("fact", list(_circumstances(report)))
    yield Lines("fault", list(_faults(report)))
    if report.cells and report.measured.is_untimed:
        yield Lines("answer", ["Recorded beside runs that were timed: what the arms did is to be read here, no times."])
        yield Lines("fact", list(_seen(telling_cell(report.cells), room)))
    elif report.cells:
        # what a program printed of itself is what its user means; its wall time holds loading too
        yield Lines("answer", list(_readings(report.cells[0], room)))
        yield from _Answer(report, room).blocks()
        yield Lines("fact", list(report.recorded))
    else:
        yield Lines("answer", [summarise(report)])
        told = [found for found in report.findings if found.severity != "info"]
        yield Lines("note", [f"{found.severity}, {found.rule}: {found.evidence}" for found in told[: room.told]])
    yield Lines("fact", [_where_the_rest_is(report)])


def _circumstances(report: Report) -> Iterator[str]:
    yield report.measured.line()
    rates = report.measured.rates_line(in_short=True)
    judged = [found for cell in report.cells for arm in cell.against_baseline.values() for found in arm.values()]
    routed = "Intervals are over routings." if any(found and found.unit == "routings" for found in judged) else None
    if told := " ".join(part for part in (rates, routed) if part):
        yield told
    if report.measured.is_loaded:
        yield f"The machine was loaded when the run began: {report.measured.load_told()}. Repeat it on a quiet one."


def _seen(cell: Cell, room: AnswerRoom) -> Iterator[str]:
    """What each arm copied and computed, without a word on speed."""
    for name in list(cell.arms)[: room.arms + 1]:
        told = _work(cell, cell.baseline, name) or "its copies and what devices computed were not recorded"
        yield f"{name}: {told}."


def _readings(cell: Cell, room: AnswerRoom) -> Iterator[str]:
    """What the programs printed themselves: each arm's beside the baseline's, and the ratio."""
    for name in list(cell.arms)[1 : room.told + 1]:
        for key, figure in cell.readings.items():
            if (found := cell.against_baseline.get(name, {}).get(key)) is not None:
                before, after = (format_value(cell.arms[arm].median(key), figure.unit) for arm in (cell.baseline, name))
                fast = f"{told_factor(found, figure.better)} x as fast"
                verdict = verdict_word(found)
                yield f"{figure.label}: {after} with {name}, {before} with {cell.baseline}: {fast}, {verdict}."
    yield from cell.not_positive_sentences()


def _faults(report: Report) -> Iterator[str]:
    """What makes times not to be trusted: an order that was broken, arms that did not compute the same."""
    for found in (report.ordering, report.check):
        if found is not None and found.is_clean is False:
            line = found.line()
            yield f"{line[0].upper()}{line[1:]}."
    if report.noticed is not None:
        yield f"{report.noticed.line()}."
    wrong = [cell for cell in report.cells if cell.faults]
    for cell in wrong[:1]:
        more = f" So in {len(wrong)} of {len(report.cells)} cells." if len(wrong) > 1 else ""
        yield f"{cell.named() or 'One cell'}: {' '.join(cell.faults)}{more}"


class _Answer:
    """The parts about cells, which share the best arm and what is judged."""

    def __init__(self, report: Report, room: AnswerRoom) -> None:
        self._report, self._room = report, room
        self._cells = report.cells
        self._baseline = telling_cell(self._cells).baseline
        # cells that the baseline did not run have another one: theirs are other comparisons
        self._compared = [cell for cell in self._cells if cell.baseline == self._baseline]
        self._resident = {arm.name for arm in report.arms if arm.is_resident}
        others = dict.fromkeys(name for cell in self._cells for name in cell.arms if name != self._baseline)
        self._others = list(others)
        self._arms = by_speed(self._compared, [name for name in others if name not in self._resident])
        self._paying = [name for name in self._arms if any(_pays_in(cell, name) for cell in self._compared)]
        self._crossovers: list[ArmCrossover] = report.crossovers
        self._best = next(iter([*self._paying, *self._arms]), None)

    def blocks(self) -> Iterator[Block]:
        yield Lines("answer", list(self._pays()))
        yield from self._table()
        yield Lines("note", [*self._pending(), *self._same_work()])
        yield Lines("fact", [*self._costs(), *self._why(), *self._sensitivity(), *self._set()])

    def _judged(self, name: str) -> list[Comparison]:
        return [told[0] for cell in self._compared if (told := told_comparison(cell, name)) is not None]

    def _pays(self) -> Iterator[str]:
        """A sentence for each arm that pays, and one for all that do not."""
        cell = telling_cell(self._cells)
        if not self._arms:
            yield self._alone()
            return
        for name in self._paying[: self._room.told]:
            yield self._sentence(cell, name)
        if more := self._paying[self._room.told :]:
            yield f"{listed(more)} {'pays' if len(more) == 1 else 'pay'} too, but less."
        rest = [name for name in self._arms if name not in self._paying]
        unsettled = [name for name in rest if any(found.n_missing for found in self._judged(name))]
        for name in unsettled[: self._room.told]:
            yield self._sentence(cell, name)
        alike = [name for name in rest if (judged := self._judged(name)) and all(one.is_same_work for one in judged)]
        if alike:
            yield f"{listed(alike)} did the same work as {self._baseline}."
        if apart := [name for name in rest if not self._judged(name)]:
            yield f"In no cell with {self._baseline}, so not compared: {', '.join(apart)}."
        if never := [name for name in rest if name not in (*unsettled, *alike, *apart)]:
            told = [f"{name} ({self._factors(name)})" for name in never]
            yield f"Faster than {self._baseline} in no cell: {', '.join(told)}."

    def _alone(self) -> str:
        """Where no arm is a choice beside the baseline."""
        if self._others:
            return f"{self._baseline} was held against {listed(self._others)} alone, with all weights on the device."
        more = " (--arms off,on)" if self._report.source == "hprof" else ""
        return f"One arm was measured, {self._baseline}: nothing to compare it with{more}."

    def _sentence(self, cell: Cell, name: str) -> str:
        """From which size an arm pays; of one size, how fast it is there."""
        told = told_comparison(cell, name)
        over = from_which_size(self._compared, cell, self._baseline, name)
        if over is not None and len(over.sizes) > 1:
            return over.in_short(name)
        if told is None:
            return f"{name} was not compared with {self._baseline}."
        found, figure = told
        where = " in wall time" if figure == "wall_ns" and cell.readings else ""  # beside what programs said themselves
        fast = f"{name} is {told_as_fast(found, figure)} as {self._baseline}{where}"
        if (missing := missing_line([found])) is not None:
            return f"{fast.replace(' is ', ' was ', 1)} in what was measured: {missing}."
        bounds = bounds_as_fast(found, figure)
        within = f" (95 % interval {bounds})" if bounds else ""
        return f"{fast}{within}: {verdict_word(found)}."

    def _factors(self, name: str) -> str:
        known = [
            as_fast(told[0].ratio, told[1])
            for cell in self._compared
            if (told := told_comparison(cell, name)) is not None
        ]
        return factor_range(known)

    def _table(self) -> Iterator[Block]:
        """A row a cell: the baseline's speed, and how many times as fast each other arm is; in cells that the baseline
        did not run, the arms' own speeds.
        """
        cells = shown_cells(self._cells, self._crossovers, self._best, self._room.cells)
        names = [
            name
            for name in shown_arms(self._cells, self._crossovers, self._resident, self._room.arms + 1)
            if name != self._baseline
        ][: self._room.arms]
        keys = varied_keys(self._cells)
        figures = {telling_figure(cell) for cell in self._cells}
        figure = figures.pop() if len(figures) == 1 else None
        label = f", {FIGURES[figure].label}" if figure is not None else ""
        rate = " t/s" if figure is not None and FIGURES[figure].unit == "tokens/s" else ""
        left_out = len(self._cells) - len(cells)
        more = f" ({format_count(left_out, 'more cell')} behind --all)" if left_out else ""
        others = ", and the others as many times as fast" if names else ""
        yield Lines("note", [f"{self._baseline}{label}{others}{more}:"])
        rows = [
            [cell.named(keys) or "all", self._speed(cell, self._baseline), *(self._told(cell, name) for name in names)]
            for cell in cells
        ]
        yield Table("", ["", f"{self._baseline}{rate}", *names], rows)

    def _speed(self, cell: Cell, name: str) -> str:
        figure = telling_figure(cell)
        if figure is None or name not in cell.arms:
            return ""
        return format_value(cell.arms[name].median(figure), FIGURES[figure].unit)

    def _told(self, cell: Cell, name: str) -> str:
        if cell.baseline != self._baseline:
            speed = self._speed(cell, name)
            return f"{speed} t/s" if speed and FIGURES[telling_figure(cell) or ""].unit == "tokens/s" else speed
        if (told := told_comparison(cell, name)) is None:
            return ""
        found, figure = told
        if found.is_same_work:
            return "same work"
        return f"{format_factor(as_fast(found.ratio, figure))} {verdict_word(found)}"

    def _pending(self) -> Iterator[str]:
        """The command that would give the verdicts that are not due yet."""
        found = [one for name in self._arms for one in self._judged(name)]
        if (command := command_for_verdict(self._report.argv, found)) is not None:
            yield f"For verdicts: {command}"

    def _same_work(self) -> Iterator[str]:
        """Arms whose decode is the baseline's by design, in one line."""
        cell = telling_cell(self._cells)
        decode = {name: cell.against_baseline.get(name, {}).get("decode_tokens_per_s") for name in self._arms}
        same = [name for name, found in decode.items() if found is not None and found.is_same_work]
        if same:
            yield f"Decode: {listed(same)} did the same work as {self._baseline}."

    def _costs(self) -> Iterator[str]:
        """What the arms that pay give up, arms with the same price together."""
        names = self._paying or self._arms[:1]
        by_price: dict[str, list[str]] = {}
        for name in names:
            if price := ", ".join(self._price(telling_cell(self._cells), name)):
                by_price.setdefault(price, []).append(name)
        for price, alike in list(by_price.items())[: self._room.told]:
            yield f"{listed(alike)} {'costs' if len(alike) == 1 else 'cost'}: {price}."

    def _price(self, cell: Cell, name: str) -> Iterator[str]:
        if name not in cell.arms:
            return
        before, after = (self._report.residency.get(arm) for arm in (self._baseline, name))
        if before is not None and after is not None:
            if lost := len(after.host_layers) - len(before.host_layers):
                yield f"{format_count(abs(lost), 'layer')} {'fewer' if lost > 0 else 'more'} resident"
            if extra := after.slots_bytes + after.bank_bytes - before.slots_bytes - before.bank_bytes:
                what = "slots and bank" if after.bank_bytes else "slots"
                yield f"{format_bytes(abs(extra))} {'more' if extra > 0 else 'less'} of {what}"
        decode = cell.against_baseline.get(name, {}).get("decode_tokens_per_s")
        is_told = telling_figure(cell) == "decode_tokens_per_s"
        if decode is not None and not (is_told or decode.is_same_work or decode.verdict == "no difference"):
            yield f"decode {told_as_fast(decode, 'decode_tokens_per_s')} ({verdict_word(decode)})"

    def _why(self) -> Iterator[str]:
        """What copying and computing took where the best arm did best, and where it did worst."""
        if self._best is None or (ends := best_and_worst(self._compared, self._best)) is None:
            return
        keys = varied_keys(self._cells)
        cells = {"": ends[0]} if ends[0] is ends[1] else {"best": ends[0], "worst": ends[1]}
        told = []
        for word, cell in cells.items():
            if (work := _work(cell, self._baseline, self._best)) is not None:
                where = f"at {cell.named(keys)} ({word}) " if word else ""
                told.append(f"{where}{work}{_instead(cell, self._baseline, self._best)}")
        if told:
            yield f"Why: {self._best} {'; '.join(told)}."

    def _sensitivity(self) -> Iterator[str]:
        if self._report.measured.is_exact and self._best is not None:
            yield from told_sensitivity(self._compared, self._best, self._arms, varied_keys(self._cells))

    def _set(self) -> Iterator[str]:
        """The flags of the fastest arm and ubatch of the telling workload, among arms that pay there; where no arm has
        a verdict yet, among those that lack one. Nothing for one arm of another tool: no choice of hprof's.
        """
        if not self._others and self._report.source != "hprof":
            return
        unsettled = [name for name in self._arms if any(found.n_missing for found in self._judged(name))]
        telling = telling_cell(self._cells)
        alike = [
            cell for cell in self._cells if replace(cell.key, n_ubatch=None) == replace(telling.key, n_ubatch=None)
        ]
        speeds = {
            (at, name): _speed(cell, name)
            for at, cell in enumerate(alike)
            for name in (self._baseline, *(self._paying or unsettled))
            if name == self._baseline or not self._paying or _pays_in(cell, name)
        }
        at, name = max(speeds, key=lambda key: speeds[key])
        is_certain = bool(self._paying) or not unsettled
        best = name if name != self._baseline else None
        yield told_settings(alike[at], best, self._report.arms, self._report.source, is_certain=is_certain)


def _pays_in(cell: Cell, name: str) -> bool:
    """Whether the arm was found faster than the baseline in this very cell."""
    told = told_comparison(cell, name)
    return told is not None and told[0].verdict == "faster"


def _speed(cell: Cell, name: str) -> float:
    """The arm's telling figure, so that more is faster; least where it has none."""
    figure = telling_figure(cell)
    median = cell.arms[name].median(figure) if figure is not None and name in cell.arms else None
    if median is None or figure is None:
        return -math.inf
    return -median if FIGURES[figure].better == "lower" else median


def _work(cell: Cell, baseline: str, name: str) -> str | None:
    """`copies for 204 ms, 30.7 % of it hidden, computes for 271 ms, 1.06 x the bytes of off`; None: not recorded.

    An arm that leaves the weights on the host copies activations alone: no bytes to hold another's against, which are
    then told as they are.
    """
    arm = cell.arms[name]
    n_bytes, copy_ns, compute_ns = (arm.median(key) for key in ("bytes_h2d", "busy_copy_ns", "busy_compute_ns"))
    if n_bytes is None or copy_ns is None or compute_ns is None:
        return None
    before, hidden = cell.arms[baseline].median("bytes_h2d"), arm.median("hidden_ratio")
    leaves_weights = _copies_only_activations(cell, baseline, name)
    amount = f" {format_bytes(n_bytes)}" if leaves_weights else ""
    told = [f"copies{amount} for {format_ns(copy_ns)}" if copy_ns else "copies nothing"]
    told += [f"{format_share(hidden)} of it hidden"] if hidden is not None else []
    told += [f"computes for {format_ns(compute_ns)}"]
    if before and baseline != name and not leaves_weights:
        told += [f"{format_factor(n_bytes / before)} x the bytes of {baseline}"]
    return ", ".join(told)


def _instead(cell: Cell, baseline: str, name: str) -> str:
    """`; cpu computes on the host for 412 ms`: of a baseline that copies no weights, where its time goes."""
    host_ns = cell.arms[baseline].median("host_compute_ns")
    if not host_ns or not _copies_only_activations(cell, baseline, name):
        return ""
    return f", where {baseline} computes on the host for {format_ns(host_ns)}"


def _copies_only_activations(cell: Cell, baseline: str, name: str) -> bool:
    """Whether the baseline copies so little beside the arm that it can be no weights."""
    before, n_bytes = (cell.arms[arm].median("bytes_h2d") for arm in (baseline, name))
    return before is not None and n_bytes is not None and before < _ACTIVATIONS * n_bytes


def _as_typed_here(capture: str) -> str:
    """The address as short as it can be typed: from the current folder, where the capture lies below it."""
    try:
        return str(Path(capture).relative_to(Path.cwd()))
    except (OSError, ValueError):  # elsewhere, or the current folder is gone
        return capture


def _where_the_rest_is(report: Report) -> str:
    """How many warnings and findings there are, and the commands that show them and one cell."""
    severities = Counter(finding.severity for finding in report.findings)
    told = [format_count(len(report.warnings), "warning")] if report.warnings else []
    told += [format_count(count, f"{severity} finding") for severity, count in severities.most_common()]
    name = shlex.quote(_as_typed_here(report.capture))
    cell = f"; a cell: --cell {report.cells[0].named(varied_keys(report.cells))}" if len(report.cells) > 1 else ""
    beside = f" ({listed(told)})" if told else ""
    return f"All of it: hprof report {name} --all{beside}{cell}"
