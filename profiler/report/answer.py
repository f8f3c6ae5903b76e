"""The first screen: what was measured, which arm pays from which size, a small table, what it costs and why, what to
set, and where the rest is. Blocks as any report's, for as much room as a renderer has.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executor.policies import find_traits
from executor.units import format_count, format_factor, format_ns, format_value, listed
from profiler.arithmetic.stats import Comparison
from profiler.manifest import ManifestArm
from profiler.metrics import FIGURES
from profiler.metrics.passes import varied_keys
from profiler.report.arm_reasons import told_decode, told_other_phase, told_price, told_why, told_work
from profiler.report.blocks import Block, Heading, Lines, Table
from profiler.report.cells import Cell, telling_cell
from profiler.report.from_which_size import from_which_size
from profiler.report.phases import DECODE_RATE, told_phase
from profiler.report.report import Report
from profiler.report.sensitivity import told_sensitivity
from profiler.report.settings_to_use import Standings, pays_in, told_choice
from profiler.report.shown_cells import (
    by_speed,
    factor,
    shown_arms,
    shown_cells,
    telling_figure,
    told_comparison,
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
    told_without_gain,
    verdict_word,
)

_MODEL: Final = "model_filename"  # of arms, where llama-bench's rows are of several
_TRACES: Final = ("kineto", "cupti", "nsys")  # sources that hold copies and kernels where there were any
_OPEN: Final = "?"  # in the table, where too little was measured for a verdict


@dataclass(frozen=True, slots=True)
class AnswerRoom:
    """How much the screen has room for."""

    cells: int = 8  # rows of the table
    arms: int = 4  # beside the baseline
    told: int = 4  # arms with sentences of their own
    has_legend: bool = True  # what hprof's own arms do
    has_details: bool = True  # the worst size beside the best, and how sure assumed rates make it
    has_context: bool = True  # how weights were placed, and the rates that were assumed
    has_costs: bool = True  # memory and decode


ANSWER_ROOMS: Final = (
    *(AnswerRoom(cells) for cells in (8, 7, 6, 5)),
    *(AnswerRoom(cells, has_legend=False) for cells in (5, 4)),
    *(AnswerRoom(cells, has_legend=False, has_details=False) for cells in (6, 5, 4, 3)),
    *(AnswerRoom(3, arms, told, has_legend=False, has_details=False) for arms in (4, 3, 2) for told in (3, 2, 1)),
    *(
        AnswerRoom(cells, arms, told=1, has_legend=False, has_details=False, has_context=False, has_costs=costs)
        for cells, arms, costs in ((3, 3, True), (3, 2, True), (2, 2, True), (2, 1, True), (2, 1, False))
    ),
)
"""From the widest to the tightest; the first that fits is drawn."""


def answer_blocks(report: Report, room: AnswerRoom) -> Iterator[Block]:
    """The blocks in order; without cells, what the devices did."""
    if report.state != "complete":
        yield Heading(report.capture, report.state)
    yield Lines("fact", list(_circumstances(report, room)))
    yield Lines("fault", [*report.faults[: room.told], *_faults(report)])
    if report.cells and report.measured.is_untimed:
        yield Lines("answer", ["Recorded beside runs that were timed: what the arms did is to be read here, no times."])
        yield Lines("fact", list(_seen(telling_cell(report.cells), room)))
    elif report.cells:
        # what a program printed of itself is what its user means; its wall time holds loading too
        yield Lines("answer", list(_readings(report.cells[0], room)))
        yield from _Answer(report, room).blocks()
        if report.source in _TRACES and len(report.cells[0].arms) == 1:  # no other arm, whose reasons would tell it
            yield Lines("fact", list(_seen(telling_cell(report.cells), room)))
        yield Lines("fact", list(report.recorded))
    else:
        yield Lines("answer", [summarise(report)])
        if not report.devices:
            yield Lines("note", report.warnings[: room.told])
        told = [found for found in report.findings if found.severity != "info"]
        yield Lines("note", [f"{found.severity}, {found.rule}: {found.evidence}" for found in told[: room.told]])
    yield Lines("fact", [_where_the_rest_is(report)])


def _circumstances(report: Report, room: AnswerRoom) -> Iterator[str]:
    yield report.measured.line(in_short=not room.has_context)
    rates = report.measured.rates_line(in_short=True)
    judged = [found for cell in report.cells for arm in cell.against_baseline.values() for found in arm.values()]
    is_routed = any(found and found.unit == "routings" for found in judged)
    routed = "Intervals are over draws of the routing." if is_routed else None
    if rates and not room.has_context:
        rates, routed = "Assumed rates: --all.", "Intervals: over draws of the routing." if is_routed else None
    if told := " ".join(part for part in (rates, routed) if part):
        yield told
    if report.measured.is_loaded:
        yield f"The machine was loaded when the run began: {report.measured.load_told()}. Repeat it on a quiet one."


def _seen(cell: Cell, room: AnswerRoom) -> Iterator[str]:
    """What each arm copied and computed, without a word on speed."""
    for name in list(cell.arms)[: room.arms + 1]:
        host_ns = cell.arms[name].median("host_compute_ns")
        on_host = "" if host_ns is None else f"the host computed for {format_ns(host_ns)}; "
        told = told_work(cell, name) or f"{on_host}its copies and what devices computed were not recorded"
        yield f"{name}: {told}."


def _readings(cell: Cell, room: AnswerRoom) -> Iterator[str]:
    """What the programs printed themselves: each arm's beside the baseline's, and the ratio."""
    if len(cell.arms) == 1:
        alone = cell.arms[cell.baseline]
        for key, figure in cell.readings.items():
            if (value := alone.median(key)) is not None:
                yield f"{figure.label}: {format_value(value, figure.unit)} with {cell.baseline}."
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
        self._models = list(dict.fromkeys(str(a.options[_MODEL]) for a in report.arms if _MODEL in a.options))
        self._arms = by_speed(self._compared, [name for name in others if name not in self._resident])
        self._paying = [name for name in self._arms if any(pays_in(cell, name) for cell in self._compared)]
        self._unsettled = [name for name in self._arms if any(found.n_missing for found in self._judged(name))]
        self._decoding = [name for name in self._arms if self._decodes_faster(name)]
        self._crossovers: list[ArmCrossover] = report.crossovers
        self._shown = shown_arms(self._cells, self._crossovers, self._baseline, self._resident, room.arms)
        self._best = next(iter([*self._paying, *self._decoding, *self._arms]), None)

    def blocks(self) -> Iterator[Block]:
        keys, telling = varied_keys(self._cells), telling_cell(self._cells)
        yield Lines("answer", list(self._pays()))
        yield from self._table()
        yield Lines("note", list(self._pending()))
        if telling_figure(telling) != DECODE_RATE and self._room.has_costs:
            yield Lines("fact", list(told_decode(telling, self._shown, self._arms, keys)))
        yield Lines("fact", list(self._costs()))
        if self._best is not None:
            yield Lines("fact", list(told_why(self._compared, self._best, keys, has_worst=self._room.has_details)))
        yield Lines("fact", [*self._sensitivity(), *self._set()])

    def _judged(self, name: str) -> list[Comparison]:
        return [told[0] for cell in self._compared if (told := told_comparison(cell, name)) is not None]

    def _decodes_faster(self, name: str) -> bool:
        """Whether it wins in decode and loses nothing in the telling figure."""
        found = telling_cell(self._cells).against_baseline.get(name, {}).get(DECODE_RATE)
        as_good = all(one.is_same_work or one.verdict == "no difference" for one in self._judged(name))
        return as_good and found is not None and found.verdict == "faster"

    def _pays(self) -> Iterator[str]:
        """A sentence for each arm that pays, and one for all that do not."""
        cell = telling_cell(self._cells)
        if not self._arms:
            yield self._alone()
            return
        if len(self._models) > 1:
            yield f"The arms ran {listed(self._models)}: a ratio between two of them compares models, not settings."
        for name in self._paying[: self._room.told]:
            yield self._sentence(cell, name)
        if more := self._paying[self._room.told :]:
            yield self._paying_too(cell, more)
        rest = [name for name in self._arms if name not in self._paying]
        unsettled = [name for name in rest if name in self._unsettled]
        for name in unsettled[: self._room.told]:
            yield self._sentence(cell, name)
        alike = [name for name in rest if (judged := self._judged(name)) and all(one.is_same_work for one in judged)]
        if alike:
            faster = [name for name in alike if name in self._decoding]
            but = f"; {listed(faster)} decoded faster" if faster else ""
            yield f"{listed(alike)} did the same work as {self._baseline}{self._phase()}{but}."
        if apart := [name for name in rest if not self._judged(name)]:
            yield f"Not compared with {self._baseline}, for no size has times of both: {listed(apart)}."
        left: dict[str, list[str]] = {}
        for name in [name for name in rest if name not in (*unsettled, *alike, *apart)]:
            words = told_without_gain({verdict_word(one) for one in self._judged(name)})
            left.setdefault(words, []).append(f"{name} ({self._factors(name)})")
        for words, told in left.items():
            yield f"{words} {self._baseline}{self._phase()}: {', '.join(told)}."
        yield from told_other_phase(self._compared, cell, self._arms[: self._room.told], self._arms)

    def _paying_too(self, cell: Cell, names: Sequence[str]) -> str:
        """Of those without a sentence of their own: the sizes from which on they pay, where it is not all of them, and
        whether each is slower than the best in every cell.
        """
        overs = {name: from_which_size(self._compared, cell, self._baseline, name) for name in names}
        begin = [
            f"{name} from a ubatch {over.at.in_words(over.axis)}"
            for name, over in overs.items()
            if over is not None and over.at is not None and over.is_faster_above
        ]
        where = f": {listed(begin)}" if begin else ""
        but = ", but less" if all(self._is_slower_throughout(name) for name in names) else ""
        return f"{listed(names)} {'pays' if len(names) == 1 else 'pay'} too{but}{where}."

    def _is_slower_throughout(self, name: str) -> bool:
        """Whether the best arm was faster than this one in each cell."""
        factors = [(factor(cell, name), factor(cell, self._paying[0])) for cell in self._compared]
        known = [(this, best) for this, best in factors if this is not None and best is not None]
        return bool(known) and all(this < best for this, best in known)

    def _alone(self) -> str:
        """Where no arm is a choice beside the baseline."""
        if self._others:
            return (
                f"Beside {self._baseline}, only {listed(self._others)} was run: all weights on the device, the limit, "
                f"{self._factors(self._others[0])} as {self._baseline}."
            )
        more = " (--arms off,on)" if self._report.source == "hprof" else ""
        return f"One arm was measured, {self._baseline}: nothing to compare it with{more}."

    def _sentence(self, cell: Cell, name: str) -> str:
        """From which size an arm pays; of one size, how fast it is there."""
        told = told_comparison(cell, name)
        over = from_which_size(self._compared, cell, self._baseline, name)
        if over is not None and len(over.sizes) > 1 and over.figure != DECODE_RATE:  # decode has no ubatch
            return over.in_short(name)
        if told is None:
            return f"{name} was not compared with {self._baseline}."
        found, figure = told
        where = " in wall time" if figure == "wall_ns" and cell.readings else self._phase()
        fast = f"{name} is {told_as_fast(found, figure)} as {self._baseline}{where}"
        if (missing := missing_line([found])) is not None:
            return f"{fast.replace(' is ', ' was ', 1)}; no verdict yet ({missing})."
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
        names = self._shown
        keys = varied_keys(self._cells)
        figures = {figure: FIGURES[figure] for cell in self._cells if (figure := telling_figure(cell)) is not None}
        of = next(iter(figures.values())).label if len(figures) == 1 else "speed"
        rate = " t/s" if {figure.unit for figure in figures.values()} == {"tokens/s"} else ""
        in_rate = f" in{rate}" if rate else ""
        left_out = {"more row": len(self._cells) - len(cells), "more arm": len(self._others) - len(names)}
        told = listed(format_count(n, what) for what, n in left_out.items() if n)
        more = f" ({told}: --all)" if told else ""
        others = ", the others as many times as fast" if names else ""
        yield Lines(
            "note",
            [*self._legend(names), f"{of[0].upper()}{of[1:]}: {self._baseline}{in_rate}{others}{more}:"],
        )
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
        return f"{format_factor(as_fast(found.ratio, figure))} {_OPEN if found.n_missing else verdict_word(found)}"

    def _legend(self, names: Sequence[str]) -> Iterator[str]:
        """What hprof's own arms do, in a few words each."""
        by_name = {arm.name: arm for arm in self._report.arms}
        told = [words for name in (self._baseline, *names) if (words := _meaning(by_name.get(name)))]
        if self._room.has_legend and told:
            yield f"Arms: {', '.join(told)}."

    def _pending(self) -> Iterator[str]:
        """The command that would give the verdicts that are not due yet; of several models none would."""
        found = [one for name in self._arms for one in self._judged(name)]
        command = command_for_verdict(self._report.argv, found, self._report.source)
        if command is not None and len(self._models) < 2:
            yield f"For verdicts in place of {_OPEN}: {command}"

    def _phase(self) -> str:
        """What the telling figure is about, where the other phase was timed as well."""
        phase = told_phase(self._cells)
        return f" in {phase}" if phase else ""

    def _costs(self) -> Iterator[str]:
        """The memory that the arms that pay take."""
        if not self._room.has_costs:
            return
        names = (self._paying if self._room.told > 1 else self._paying[:1]) or self._arms[:1]
        telling = telling_cell(self._cells)
        yield from told_price(self._report.residency, self._baseline, names, telling, most=self._room.told)

    def _sensitivity(self) -> Iterator[str]:
        if self._room.has_details and self._report.measured.is_exact and self._best is not None:
            yield from told_sensitivity(self._compared, self._best, self._arms, varied_keys(self._cells))

    def _set(self) -> Iterator[str]:
        """What to set. Nothing of another tool's one arm, arms not compared, several models, or a planted fault."""
        is_choice = any(self._judged(name) for name in self._others) or (
            self._report.source == "hprof" and len(self._cells) > 1
        )
        if not is_choice or len(self._models) > 1 or self._report.noticed is not None:
            return
        yield told_choice(
            self._cells,
            Standings(self._baseline, self._paying, self._unsettled, self._decoding),
            self._report.arms,
            self._report.source,
        )


def _meaning(arm: ManifestArm | None) -> str | None:
    """`on (prefetch)`; None of what another tool ran."""
    if arm is None or arm.traits is None:
        return None
    known = find_traits(arm.requested or arm.name) or arm.traits  # today's words for captures of other versions too
    return f"{arm.name} ({known.meaning})"


def _as_typed_here(capture: str) -> str:
    """The address as short as it can be typed: from the current folder, where the capture lies below it."""
    try:
        return str(Path(capture).relative_to(Path.cwd()))
    except (OSError, ValueError):  # elsewhere, or the current folder is gone
        return capture


def _where_the_rest_is(report: Report) -> str:
    """How many warnings and findings there are, and the commands that show them and one cell."""
    serious = list(dict.fromkeys(finding.rule for finding in report.findings if finding.severity == "serious"))
    told = [format_count(len(report.warnings), "warning")] if report.warnings else []
    told += [format_count(len(report.findings), "finding")] if report.findings else []
    told += [f"serious: {listed(serious)}"] if serious else []
    name = shlex.quote(_as_typed_here(report.capture))
    cell = f"; one row: --cell {report.cells[0].named(varied_keys(report.cells))}" if len(report.cells) > 1 else ""
    beside = f" ({', '.join(told)})" if told else ""
    return f"More: hprof report {name} --all{beside}{cell}"
