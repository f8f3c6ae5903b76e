"""From which ubatch an arm beats another, over the cells that differ in that size alone: for the terminal's first
screen and the Overview, which put the same finding into words of their own lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from executor.units import listed
from profiler.report.cells import Cell
from profiler.report.sweep import (
    BATCH,
    UBATCH,
    ArmCrossover,
    Crossover,
    at_own_size,
    axis_of_most,
    crosses_once,
    crossover,
    sweep_figures,
)
from profiler.report.verdicts import SAME_WORK, TELLING, as_fast, factor_range, missing_line

_ALONE: Final = {
    "no difference": "takes as long as",
    "unclear": "is not certain to differ from",
    SAME_WORK: "did the same work as",
}


@dataclass(frozen=True, slots=True)
class OverSizes:
    """How arm B does against A over ubatches, or over prompts of one ubatch."""

    a: str
    figure: str  # the first of TELLING that was judged
    axis: str
    sizes: list[float]  # tokens in the ubatch, ascending
    verdicts: list[str]  # in a word
    factors: list[float]  # B as many times as fast as A
    at: Crossover | None  # where each side of it holds one order alone
    missing: str | None  # what verdicts still need, where none was given for want of pairs
    where: str  # `at depth 0`, where several depths were measured; empty otherwise

    @property
    def is_faster_above(self) -> bool:
        """Which side of the crossover is the good one."""
        return self.factors[-1] > 1

    @property
    def span(self) -> str:
        """`64 to 2,048 tokens`."""
        return f"{_number(self.sizes[0])} to {_number(self.sizes[-1])} tokens"

    def sentence(self, who: str) -> str:
        """With B as the subject."""
        if len(self.sizes) == 1:
            return (
                f"Only ubatches of {_number(self.sizes[0])} tokens were measured; sweep several sizes to see from "
                "which on it helps."
            )
        return f"{self._told(who)} That is {self.where}." if self.where else self._told(who)

    def _told(self, who: str) -> str:
        kinds = list(dict.fromkeys(self.verdicts))
        fast = factor_range(self.factors)
        if self.missing is not None and not {"faster", "slower", "no difference"} & set(kinds):
            return f"{who} was {fast} as {self.a} with ubatches of {self.span}; no verdict yet ({self.missing})."
        if len(kinds) == 1:
            than = _ALONE.get(kinds[0], f"is {kinds[0]} than")
            return f"{who} {than} {self.a} at every ubatch measured, {self.span}: {fast}."
        if self.at is not None and {"faster", "slower"} <= set(kinds) and SAME_WORK not in kinds:
            words = ("faster", "slower") if self.is_faster_above else ("slower", "faster")
            from_there = f"from a ubatch {self.at.in_words(self.axis)}, {words[1]} below"
            return f"{who} is {words[0]} than {self.a} {from_there}{self._undecided}."
        sized = list(zip(self.sizes, self.verdicts, strict=True))
        told = [f"{kind} at {listed(_number(s) for s, v in sized if v == kind)}" for kind in kinds]
        return f"{who} against {self.a}, by tokens a ubatch: {'; '.join(told)}."

    def in_short(self, who: str) -> str:
        """One line of a terminal, where the finding is simple."""
        fast = factor_range(self.factors)
        if set(self.verdicts) == {"faster"}:
            return f"{self._begun}{who} pays at every ubatch measured, {self.span}: {fast} as {self.a}."
        if self.at is not None and self.is_faster_above and {"faster", "slower"} <= set(self.verdicts):
            return f"{self._begun}{who} pays from a ubatch {self.at.in_words(self.axis)}{self._undecided}."
        return f"{self._begun}{self._told(who)}" if len(self.sizes) > 1 else self.sentence(who)

    @property
    def _undecided(self) -> str:
        """Behind a crossover, the sizes that were measured near it without being faster or slower; or nothing."""
        near = [_number(size) for size, word in zip(self.sizes, self.verdicts, strict=True) if word == "no difference"]
        return f"; no difference at {listed(near)}" if near else ""

    @property
    def _begun(self) -> str:
        """`At depth 0, `, or nothing."""
        return f"{self.where[0].upper()}{self.where[1:]}, " if self.where else ""


def from_which_size(cells: Sequence[Cell], cell: Cell, a: str, b: str) -> OverSizes | None:
    """Over the cells that differ from this one in the ubatch (or the prompt) alone. None: nothing was judged, or its
    size is not known.
    """
    for figure in TELLING:
        rows = sweep_figures(cells, figure)
        rows = rows[(rows["arm"] == b) & rows["verdict"].notna() & rows["n_ubatch"].notna()]
        axis, found = axis_of_most(rows, cell)
        if not len(found):
            continue
        found = at_own_size(found)
        at = crossover(found)
        judged = [one for each in cells if (one := each.against_baseline.get(b, {}).get(figure)) is not None]
        n_depths = len({each.n_depth for each in cells})
        n_prompts = len({each.n_prompt for each in cells if each.n_prompt})
        where = ["with each prompt as one ubatch"] if axis == BATCH and found["n_prompt"].nunique() > 1 else []
        where += (
            [f"with prompts of {cell.n_prompt:,} tokens"] if axis == UBATCH and cell.n_prompt and n_prompts > 1 else []
        )
        where += [f"at depth {cell.n_depth:,}"] if cell.n_depth is not None and n_depths > 1 else []
        return OverSizes(
            a=a,
            figure=figure,
            axis=axis,
            sizes=found["n_ubatch"].tolist(),
            verdicts=found["word"].tolist(),
            factors=[as_fast(ratio, figure) for ratio in found["ratio"]],
            at=at if at is not None and crosses_once(found, at) else None,
            missing=missing_line(judged),
            where=", ".join(where),
        )
    return None


def crossover_lines(crossovers: Sequence[ArmCrossover]) -> list[str]:
    """Each in words, with the sizes that the others do not share."""
    keys = {"-p": "n_prompt", "-n": "n_gen", "-d": "n_depth"}
    varied = {option: key for option, key in keys.items() if len({getattr(one, key) for one in crossovers}) > 1}
    lines = []
    for one in crossovers:
        sizes = {option: getattr(one, key) for option, key in varied.items()}
        where = "".join(f" {option} {size}" for option, size in sizes.items() if size is not None)
        again = "" if one.is_last else "; below it the order changes more than once"
        at = one.at.in_words(one.axis)
        lines.append(
            f"{one.arm} takes as long as {one.baseline}{f' at{where}' if where else ''} with a ubatch {at}{again}"
        )
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}"
