"""A report's cells as one table, and what is read off it: changes over the grid, crossovers, limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pandas as pd

from profiler.metrics.passes import CELL_KEYS, CellKey
from profiler.report.verdicts import OTHER_WORK, SAME_WORK, TELLING, as_fast, verdict_word

if TYPE_CHECKING:
    from profiler.report.cells import ArmFigures, Cell

UBATCH: Final = "n_ubatch"
DEPTH: Final = "n_depth"
PROMPT: Final = "n_prompt"
BATCH: Final = "batch"  # prompts that are one ubatch: what goes through the layers together is the prompt
_FIXED: Final = {
    UBATCH: ("n_prompt", "n_gen", "n_depth"),
    DEPTH: ("n_prompt", "n_gen", "n_ubatch"),
    PROMPT: ("n_gen", "n_ubatch", "n_depth"),
    BATCH: ("n_gen", "n_ubatch", "n_depth"),
}
_NS: Final = 1e9
_ALIKE: Final = "no difference"
_MAX_FACTOR: Final = 2  # between neighbouring sizes, to say where between them two arms cross


@dataclass(frozen=True, slots=True)
class Crossover:
    """The ubatch at which two arms take the same time, which lies between the measured sizes `below` and `above`.

    n_ubatch: on a straight line between them; null where they lie more than a factor of two apart, for what the ratio
    does between them is then anybody's guess. `low` and `high` bound it with the ratios' intervals; null where an
    interval never reaches 1 inside the measured range.
    """

    below: float
    above: float
    n_ubatch: float | None
    low: float | None
    high: float | None

    @property
    def sizes_between(self) -> str:
        """Powers of two to measure between the two, as options spell them: `64-1024*2`."""
        first, last = 2 ** (math.floor(math.log2(self.below)) + 1), 2 ** (math.ceil(math.log2(self.above)) - 1)
        return f"{first}-{last}*2" if last > first else str(first)

    def in_words(self, axis: str) -> str:
        """`of about 128 tokens (95 % interval 115 to 142)`, or between which sizes, and what to measure to know."""
        if self.n_ubatch is None:
            option = "-ub" if axis == UBATCH else "-p"
            return (
                f"somewhere between {self.below:,.0f} and {self.above:,.0f} tokens "
                f"({option} {self.sizes_between} would tell)"
            )
        ends = [f"{end:,.0f}" for end in (self.low, self.high) if end is not None]
        bounds = f" (95 % interval {' to '.join(ends)})" if len(set(ends)) == 2 else ""
        return f"of about {self.n_ubatch:,.0f} tokens{bounds}"


def sweep_figures(cells: Sequence[Cell], figure: str) -> pd.DataFrame:
    """One row an arm of a cell: the sizes, arm, median, low, high, n, limit (see `overlap_limit`), and against the
    baseline ratio, ratio_low, ratio_high, verdict, and that in a word, which says why none is given (NaN and None for
    the baseline itself)."""
    rows = []
    for cell in cells:
        for name, arm in cell.arms.items():
            found, against = arm.figures["pass"].get(figure), cell.against_baseline.get(name, {}).get(figure)
            if found is None:
                continue
            rows.append(
                dict(zip(CELL_KEYS, cell.sizes, strict=True))
                | {"arm": name, "median": found.median, "low": found.low, "high": found.high, "n": found.n}
                | {"limit": overlap_limit(arm, figure, cell.n_prompt)}
                | {f"ratio{part}": getattr(against, key, None) for part, key in _RATIO.items()}
                | {"verdict": against.verdict if against is not None else None}
                | {"word": verdict_word(against) if against is not None else None}
            )
    columns = [
        *CELL_KEYS,
        "arm",
        "median",
        "low",
        "high",
        "n",
        "limit",
        *(f"ratio{part}" for part in _RATIO),
        "verdict",
        "word",
    ]
    frame = pd.DataFrame(rows, columns=columns)
    numbers = [name for name in columns if name not in ("arm", "verdict", "word")]
    frame[numbers] = frame[numbers].astype(float)
    return frame


_RATIO: Final = {"": "ratio", "_low": "low", "_high": "high"}


def overlap_limit(arm: ArmFigures, figure: str, n_prompt: int | None) -> float | None:
    """What the arm could reach if every copy ran beside compute: max(C, T) of its prefill, as `figure`.

    C and T are busy compute and busy copy of the prefill; only ttft_ns and prefill_tokens_per_s have such a limit.
    """
    copy, compute = (arm.figures["prefill"].get(name) for name in ("busy_copy_ns", "busy_compute_ns"))
    if copy is None or compute is None or figure not in ("ttft_ns", "prefill_tokens_per_s"):
        return None
    longest_ns = max(copy.median, compute.median)
    if figure == "ttft_ns":
        return longest_ns
    return n_prompt * _NS / longest_ns if n_prompt and longest_ns else None


def crossover(rows: pd.DataFrame) -> Crossover | None:
    """Where the ratio of an arm to the baseline passes 1, on a logarithmic axis of ubatches; null where it does not.

    rows: one arm's rows of `sweep_figures` at one depth. The last crossing counts: from there on the order stays.
    Where both did the same work, as below a gate, or each did other work, there is no ratio to cross with; and where
    all of one side is no difference, no order that could turn.
    """
    rows = _with_order(rows)
    sizes = rows["n_ubatch"].tolist()
    found = _last_crossing(sizes, rows["ratio"].tolist())
    if found is None or not _has_order_on_both_sides(rows, found):
        return None
    if found.is_wide:
        return Crossover(found.below, found.above, None, None, None)
    edges = [_last_crossing(sizes, rows[name].tolist()) for name in ("ratio_low", "ratio_high")]
    known = sorted((edge for edge in edges if edge is not None), key=lambda edge: edge.at)
    lower = known[0] if len(known) == 2 or (known and known[0].at < found.at) else None
    upper = known[-1] if len(known) == 2 or (known and known[0].at > found.at) else None
    return Crossover(
        *(found.below, found.above, found.at),
        None if lower is None else lower.below if lower.is_wide else lower.at,
        None if upper is None else upper.above if upper.is_wide else upper.at,
    )


def _with_order(rows: pd.DataFrame) -> pd.DataFrame:
    """In the order of the sizes, without the rows whose ratio is unknown, chance, or of different work."""
    return at_own_size(rows[~rows["word"].isin((SAME_WORK, OTHER_WORK))].dropna(subset=["ratio", "n_ubatch"]))


def at_own_size(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of one arm in the order of the ubatches that ran, with those as `n_ubatch`.

    No ubatch is larger than its prompt: of settings that make the prompt one ubatch the smallest stays.
    """
    rows = rows.sort_values("n_ubatch")
    capped = rows[["n_ubatch", "n_prompt"]].min(axis=1).where(rows["n_prompt"] > 0, rows["n_ubatch"])
    return rows.assign(n_ubatch=capped).drop_duplicates(["n_prompt", "n_ubatch"])


def _has_order_on_both_sides(rows: pd.DataFrame, found: _Crossing) -> bool:
    is_below, is_alike = rows["n_ubatch"] <= found.below, rows["word"] == _ALIKE
    return not (is_alike[is_below].all() or is_alike[~is_below].all())


class _Crossing(NamedTuple):
    """Between which neighbours a ratio passes 1, and where a straight line between them does."""

    below: float
    above: float
    at: float

    @property
    def is_wide(self) -> bool:
        return self.above > _MAX_FACTOR * self.below


def _last_crossing(sizes: Sequence[float], ratios: Sequence[float]) -> _Crossing | None:
    found = None
    for (x0, y0), (x1, y1) in zip(
        zip(sizes, ratios, strict=True), zip(sizes[1:], ratios[1:], strict=False), strict=False
    ):
        if math.isnan(y0) or math.isnan(y1) or y0 <= 0 or y1 <= 0 or x0 <= 0 or (y0 - 1) * (y1 - 1) > 0 or y0 == y1:
            continue
        share = math.log(y0) / (math.log(y0) - math.log(y1))
        found = _Crossing(x0, x1, math.exp(math.log(x0) + share * (math.log(x1) - math.log(x0))))
    return found


def rows_over(rows: pd.DataFrame, axis: str, sizes: CellKey) -> pd.DataFrame:
    """The rows of `sweep_figures` that differ from the cell `sizes` along this axis alone.

    Of BATCH: prompts that fit into one ubatch, whose length then is their `n_ubatch`, as min(prompt, ubatch) is.
    """
    for size in _FIXED[axis]:
        value = getattr(sizes, size)
        rows = rows[rows[size].isna() if value is None else rows[size] == value]
    return one_ubatch(rows) if axis == BATCH else rows


def one_ubatch(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose prompt is a single ubatch, with its tokens as `n_ubatch`."""
    single = rows[(rows["n_prompt"] > 0) & (rows["n_prompt"] <= rows["n_ubatch"])]
    return single.assign(n_ubatch=single["n_prompt"])


def axes_of(rows: pd.DataFrame, sizes: CellKey) -> list[str]:
    """The axes along which there is more than one size; the ubatch where there is none."""
    varied = [axis for axis in (UBATCH, DEPTH) if rows_of_workload(rows, sizes)[axis].nunique() > 1]
    prompts = rows[(rows["n_gen"] == sizes.n_gen) & (rows["n_prompt"] > 0)] if sizes.n_gen is not None else rows
    varied += [PROMPT] if prompts["n_prompt"].nunique() > 1 else []
    return varied or [UBATCH]


def rows_of_workload(rows: pd.DataFrame, sizes: CellKey) -> pd.DataFrame:
    """Rows of the cell's prompt and generated tokens."""
    for size in ("n_prompt", "n_gen"):
        value = getattr(sizes, size)
        rows = rows[rows[size].isna() if value is None else rows[size] == value]
    return rows


def cell_with_rows(rows: pd.DataFrame, sizes: CellKey) -> CellKey:
    """The cell; where no row has its prompt and generated tokens, the largest one of those with the most arms."""
    if rows.empty or len(rows_of_workload(rows, sizes)):
        return sizes.key
    n_arms = rows.groupby(CELL_KEYS, dropna=False)["arm"].nunique()
    counted = zip(n_arms.tolist(), n_arms.index, strict=True)
    _, best = max(counted, key=lambda found: (found[0], *(-1 if pd.isna(size) else size for size in found[1])))
    return CellKey(*(None if pd.isna(size) else int(size) for size in best))


def axis_of_most(rows: pd.DataFrame, sizes: CellKey) -> tuple[str, pd.DataFrame]:
    """The ubatch, or prompts of one ubatch: along which of the two more was measured, and the rows along it."""
    by_axis = {axis: rows_over(rows, axis, sizes) for axis in (UBATCH, BATCH)}
    axis = max(by_axis, key=lambda axis: len(by_axis[axis]))
    return axis, by_axis[axis]


def crosses_once(rows: pd.DataFrame, at: Crossover) -> bool:
    """Whether every size below the crossover lies on one side of 1, and every size above on the other.

    Sizes at which both did the same work, or other work, say nothing of either.
    """
    rows = _with_order(rows)
    is_below, is_less = rows["n_ubatch"] < at.above, rows["ratio"] < 1
    return bool((is_less == is_below).all() or (is_less != is_below).all())


def factors_as_fast(rows: pd.DataFrame, figure: str) -> pd.DataFrame:
    """The rows of `sweep_figures` that were compared, with `fast`, `fast_low` and `fast_high`: how many times as fast
    the arm is as the baseline, and the interval (NaN where there is none).
    """
    rows = rows.dropna(subset=["ratio"])
    fast = rows[["ratio", "ratio_low", "ratio_high"]].astype(float).map(lambda ratio: as_fast(ratio, figure))
    edges = fast[["ratio_low", "ratio_high"]]
    return rows.assign(
        fast=fast["ratio"], fast_low=edges.min(axis=1, skipna=False), fast_high=edges.max(axis=1, skipna=False)
    )


def factor_grid(rows: pd.DataFrame, figure: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(how many times as fast as the baseline, the verdict in a word) over n_depth (rows) and n_ubatch (columns).

    rows: one arm's rows of `sweep_figures`.
    """
    rows = factors_as_fast(rows, figure)
    places = rows.assign(n_depth=rows["n_depth"].fillna(0), n_ubatch=rows["n_ubatch"].fillna(0))
    places = places.drop_duplicates(["n_depth", "n_ubatch"], keep="last")
    grid, words = (
        places.pivot_table(index="n_depth", columns="n_ubatch", values=name, aggfunc="first", dropna=False)
        for name in ("fast", "word")
    )
    return grid, words.reindex(index=grid.index, columns=grid.columns)


@dataclass(frozen=True, slots=True)
class ArmCrossover:
    """One arm against the baseline, over ubatches (or prompts of one ubatch) with the other sizes fixed."""

    arm: str
    baseline: str
    figure: str
    axis: str  # "n_ubatch", or "batch": the prompt, where each is one ubatch
    n_prompt: int | None  # None on the axis "batch"
    n_gen: int | None
    n_depth: int | None
    at: Crossover
    is_last: bool  # whether each side of it holds one order alone

    def to_json(self) -> dict[str, Any]:
        """As plain values: the fields, with those of the crossover beside them."""
        at = asdict(self.at)
        return {name: value for name, value in asdict(self).items() if name != "at"} | at


def all_crossovers(cells: Sequence[Cell]) -> list[ArmCrossover]:
    """Of every arm, in the order of baselines, arms and cells; each line of sizes once. Cells of different baselines
    are never on one line.
    """
    figure = next((name for name in TELLING if any(_has(cell, name) for cell in cells)), None)
    if figure is None:
        return []
    baselines = dict.fromkeys(cell.baseline for cell in cells)
    alike = [[cell for cell in cells if cell.baseline == baseline] for baseline in baselines]
    return [found for group in alike for found in dict.fromkeys(_of_figure(group, figure))]


def _has(cell: Cell, figure: str) -> bool:
    return any(found.get(figure) is not None for found in cell.against_baseline.values())


def _of_figure(cells: Sequence[Cell], figure: str) -> Iterator[ArmCrossover]:
    rows = sweep_figures(cells, figure)
    for arm in dict.fromkeys(rows["arm"]):
        of_arm = rows[(rows["arm"] == arm) & rows["verdict"].notna()]
        for line in dict.fromkeys(CellKey(cell.n_prompt, cell.n_gen, cell.n_ubatch, cell.n_depth) for cell in cells):
            axis, along = axis_of_most(of_arm, line)
            found = crossover(along)
            if found is not None:
                n_prompt = line.n_prompt if axis == "n_ubatch" else None
                once = crosses_once(along, found)
                sizes = (n_prompt, line.n_gen, line.n_depth)
                yield ArmCrossover(arm, cells[0].baseline, figure, axis, *sizes, found, once)
