"""What `hprof.open` gives: a capture for notebooks and scripts, which tells its answer, figures, report and pictures.

Inside hprof, what measures and judges takes a plain `Capture`; all of it is loaded here when it is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, get_args

from executor.errors import HprofError, did_you_mean
from executor.units import format_count, listed
from profiler.arithmetic.stats import DEFAULT_NOISE
from profiler.capture import Capture
from profiler.metrics.passes import CELL_KEYS, is_warmup, measured_passes
from profiler.plain_text import printable

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    import pyarrow as pa
    import pyarrow.compute as pc

    from hprof.plots import Picture
    from profiler.report.report import Report
    from profiler.report.sweep import ArmCrossover

Level = Literal["pass", "prefill", "decode", "ubatch", "layer"]
_LEVELS: Final[tuple[str, ...]] = get_args(Level)
_PASS_COLUMNS: Final = [
    *("pass_id", "arm", "n_ubatch", "n_depth", "n_prompt", "n_gen", "repetition", "order", "boot", "warmup"),
]


class OpenedCapture(Capture):
    """A capture. `arms`, `passes`, `figures()`, `report()`, `crossover(arm)`, `plot()`, and `frame(table)`.

    Warm-up passes are left out of all of them but `frame("passes")`, unless they are asked for.
    """

    def __repr__(self) -> str:
        try:
            return printable("\n".join([f"<hprof capture {self.path}: {self.manifest.state}>", *self._facts()]))
        except HprofError as error:  # a repr that raises hides what a notebook was about to show
            return printable(f"<hprof capture {self.path}, which cannot be read: {error}>")

    def _repr_html_(self) -> str:
        from profiler.report.answer import ANSWER_ROOMS, answer_blocks
        from profiler.report.html import block_html

        try:
            report = self.report()
        except HprofError:
            return ""  # then a notebook shows the repr
        lines = [line for block in answer_blocks(report, ANSWER_ROOMS[0]) for line in block_html(block)]
        return "\n".join(['<div class="hprof-capture">', *lines, "</div>"])

    def _facts(self) -> Iterator[str]:
        from profiler.report.measured import what_was_measured

        yield what_was_measured(self.manifest).line()
        passes = self.passes
        n_cells = len(passes[CELL_KEYS].drop_duplicates())
        n_warmups = self.n_passes - len(passes)
        beside = f", {format_count(n_warmups, 'warm-up')} beside them" if n_warmups else ""
        yield f"Arms: {', '.join(self.arms) or 'none'}."
        yield f"{format_count(len(passes), 'measured pass')} in {format_count(n_cells, 'cell')}{beside}."

    @property
    def arms(self) -> list[str]:
        """The arms' names, the baseline first; also those of which no pass was measured."""
        told = [arm.name for arm in self.manifest.arms]
        return list(dict.fromkeys([*told, *self.passes["arm"]]))

    @cached_property
    def passes(self) -> pd.DataFrame:
        """The measured passes in the order of the run; `frame("passes")` has the warm-ups as well."""
        passes = self.frame("passes").sort_values(["order", "pass_id"], ignore_index=True)
        return measured_passes(passes).reset_index(drop=True)

    def frame(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        pass_ids: Collection[int] | None = None,
    ) -> pd.DataFrame:
        """A table as a pandas frame; labels are categoricals, and whole numbers stay whole beside nulls (Int64)."""
        return _with_whole_numbers(self.table(name, columns, filters, pass_ids))

    def figures(self, level: Level = "pass", *, arm: str | None = None, warmups: bool = False) -> pd.DataFrame:
        """Metrics as a frame (docs/metrics.md): one row a pass, a pass's phase, a ubatch or a layer.

        arm: its passes alone. warmups: these passes too. Rows of passes carry the pass's arm and sizes; NaN is null:
        what the source cannot say. Raises HprofError for a level or an arm that there is not.
        """
        from profiler import metrics

        if level not in _LEVELS:
            hint = did_you_mean(level, _LEVELS) or f"the levels are {listed(_LEVELS)}."
            raise HprofError(f"figures({level!r}): there is no such level; {hint}")
        passes = self._chosen_passes(arm, warmups=warmups)
        tables = metrics.load_tables(self._plain)
        if level in ("layer", "ubatch"):
            found = (
                metrics.layer_figures(tables.recording)
                if level == "layer"
                else metrics.ubatch_figures(tables.ubatches, tables.recording)
            )
            return found[found["pass_id"].isin(passes["pass_id"])].reset_index(drop=True)
        frames = {str(scope): frame for scope, frame in metrics.pass_figures(*tables).items()}
        merged = passes[_PASS_COLUMNS].merge(frames[level], left_on="pass_id", right_index=True)
        return merged.reset_index(drop=True)

    def report(self, noise: float = DEFAULT_NOISE) -> Report:
        """Judge the capture; noise: the relative change that counts as none. `.to_frame()` gives its figures."""
        from profiler.report.build import build_report

        return build_report(self._plain, noise=noise)

    def crossover(
        self, arm: str, *, n_prompt: int | None = None, n_gen: int | None = None, n_depth: int | None = None
    ) -> ArmCrossover | None:
        """The ubatch at which the arm takes as long as the baseline, with its interval; None where it crosses nowhere.

        Of several workloads or depths the largest one that crosses, unless sizes choose. Raises HprofError for an arm
        that the capture has not.
        """
        self._check_arm(arm)
        wanted = {"n_prompt": n_prompt, "n_gen": n_gen, "n_depth": n_depth}
        asked = {name: size for name, size in wanted.items() if size is not None}
        found = [
            one
            for one in self.report().crossovers
            if one.arm == arm and all(getattr(one, name) == size for name, size in asked.items())
        ]
        return max(found, key=lambda one: (one.n_prompt or 0, one.n_gen or 0, one.n_depth or 0), default=None)

    def plot(self, picture: Picture = "factors", *, figure: str | None = None, arm: str | None = None) -> go.Figure:
        """One of the dashboard's pictures, as a plotly figure.

        picture: `factors` (times as fast as the baseline over sizes), `sweep` (the figure itself), `time` (where a
        pass's time went, a bar an arm), `layers` (compute and copy of each layer of `arm`) or `timeline` (how busy copy
        and compute were over a typical pass of the baseline and of `arm`, in columns: an event by itself is in the
        dashboard). figure: prefill, ttft or decode, by the names of docs/metrics.md. Raises HprofError where the
        capture does not hold what it would show.
        """
        from hprof.command_line import foreign_package

        if (problem := foreign_package("dashboard")) is not None:
            raise ImportError(problem)
        from hprof.plots import draw

        if arm is not None:
            self._check_arm(arm)
        return draw(self, picture, figure, arm)

    @cached_property
    def _plain(self) -> Capture:
        """The same capture, whose frames are as hprof's own code expects them."""
        return Capture.open(self.path)

    def _chosen_passes(self, arm: str | None, *, warmups: bool) -> pd.DataFrame:
        passes = self._plain.passes
        if not warmups:
            passes = passes[~is_warmup(passes)]
        if arm is None:
            return passes
        self._check_arm(arm)
        return passes[passes["arm"] == arm]

    def _check_arm(self, arm: str) -> None:
        if arm not in self.arms:
            hint = did_you_mean(arm, self.arms) or f"its arms are {listed(self.arms) or 'none'}."
            raise HprofError(f"{self.path} has no arm {arm!r}; {hint}")


def _with_whole_numbers(table: pa.Table) -> pd.DataFrame:
    """As a frame whose integer columns with nulls are Int64: layer 0 is 0 and not 0.0."""
    import pandas as pd
    import pyarrow as pa

    frame: pd.DataFrame = table.to_pandas()
    for name in table.column_names:
        column = table[name]
        if pa.types.is_integer(column.type) and column.null_count:
            frame[name] = column.cast(pa.int64()).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return frame
