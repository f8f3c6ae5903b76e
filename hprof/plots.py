"""The dashboard's pictures of a capture, outside the dashboard: the same figures drawn by the same functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, get_args

import pandas as pd
import plotly.graph_objects as go

from dashboard.figures.size_axes import SweepArms
from dashboard.figures.sweep import arms_figure, arms_ratio_figure, ratio_figure, sweep_figure
from dashboard.figures.time import busy_figure, layer_figure, spent_figure
from dashboard.text import for_plotly
from executor.errors import HprofError, did_you_mean
from executor.units import listed
from profiler.compare.gate import ALIASES
from profiler.export.tracks import typical_passes
from profiler.metrics.devices import typical_time_spent
from profiler.metrics.layers import typical_layers
from profiler.metrics.passes import varied_keys
from profiler.metrics.timeline import load_timeline
from profiler.report.cells import Cell, telling_cell
from profiler.report.report import Report
from profiler.report.sweep import DEPTH, Crossover, axes_of, crossover, factors_as_fast, rows_over, sweep_figures
from profiler.report.verdicts import TELLING

if TYPE_CHECKING:
    from hprof.opened import OpenedCapture

Picture = Literal["factors", "sweep", "time", "layers", "timeline"]
_TITLE_HEIGHT: Final = 30
_OF_A_CELL: Final = ("time", "layers", "timeline")
_PICTURES: Final[tuple[str, ...]] = get_args(Picture)


def draw(capture: OpenedCapture, picture: Picture, figure: str | None, arm: str | None) -> go.Figure:
    """The picture of that name. Raises HprofError where there is none, or the capture does not hold what it shows."""
    if picture not in _PICTURES:
        hint = did_you_mean(str(picture), _PICTURES) or f"the pictures are {listed(_PICTURES)}."
        raise HprofError(f"plot({picture!r}): there is no such picture; {hint}")
    report = capture.report()
    if not report.cells:
        raise HprofError(f"{capture.path} has no measured pass, so there is nothing to plot; frame('events') has rows.")
    drawn = _Drawn(capture, report, figure, arm)
    figures: Mapping[str, Callable[[], go.Figure]] = {
        "factors": drawn.factors,
        "sweep": drawn.sweep,
        "time": drawn.time,
        "layers": drawn.layers,
        "timeline": drawn.timeline,
    }
    return _titled(figures[picture](), drawn.about(picture))


def _titled(figure: go.Figure, about: str) -> go.Figure:
    """A picture that leaves the dashboard says itself what it is of."""
    top, height = figure.layout.margin.t or 0, figure.layout.height + _TITLE_HEIGHT
    if figure.layout.legend.yref == "container":
        figure.update_layout(legend={"y": 1 - _TITLE_HEIGHT / height})
    figure.update_layout(
        title={"text": for_plotly(about), "font": {"size": 13}, "x": 0, "y": 1, "yanchor": "top", "pad": {"t": 10}},
        margin={"t": top + _TITLE_HEIGHT},
        height=height,
    )
    return figure


@dataclass(frozen=True)
class _Drawn:
    capture: OpenedCapture
    report: Report
    figure: str | None  # as it was asked for; None: the first of TELLING that was measured
    arm: str | None

    @cached_property
    def _cell(self) -> Cell:
        return telling_cell([cell for cell in self.report.cells if self.arm in cell.arms] or self.report.cells)

    def about(self, picture: Picture) -> str:
        """`SIMULATED: mine, ub=512`: whether anything was timed, the capture, and the cell where one alone is drawn."""
        nature = f"{self.report.measured.first_word}: " if self.report.measured.is_exact else ""
        cell = self._cell.named(varied_keys(self.report.cells)) if picture in _OF_A_CELL else ""
        arm = f"arm {self.arm or self._cell.baseline}" if picture == "layers" else ""
        return nature + ", ".join(part for part in (self.capture.name, cell, arm) if part)

    @cached_property
    def _name(self) -> str:
        known = [name for name in TELLING if not sweep_figures(self.report.cells, name).empty]
        if self.figure is None:
            if not known:
                raise HprofError(f"{self.capture.path} says no times of its passes; plot('time') may show their parts.")
            return known[0]
        name = ALIASES.get(self.figure, self.figure)
        if name not in known:
            raise HprofError(f"figure={self.figure!r} is not one that can be plotted here: {listed(known) or 'none'}.")
        return name

    @cached_property
    def _along(self) -> tuple[str, pd.DataFrame]:
        """The axis along which most was measured, and the rows along it."""
        rows = sweep_figures(self.report.cells, self._name)
        axis = axes_of(rows, self._cell)[0]
        return axis, rows_over(rows, axis, self._cell)

    @cached_property
    def _arms(self) -> SweepArms:
        names = list(dict.fromkeys(name for cell in self.report.cells for name in cell.arms))
        others = [name for name in names if name != self._cell.baseline]
        b = self.arm if self.arm in others else next(iter(others), None)
        ceilings = [arm.name for arm in self.report.arms if arm.is_resident]
        return SweepArms(names, self._cell.baseline, b, ceilings)

    def sweep(self) -> go.Figure:
        axis, rows = self._along
        if rows[axis].isna().all():  # of callables or commands: their sizes are their own
            return arms_figure(rows, self._name, self._arms)
        return sweep_figure(rows, self._name, axis, self._arms)

    def factors(self) -> go.Figure:
        axis, rows = self._along
        factors = factors_as_fast(rows, self._name)
        if factors.empty:
            raise HprofError(f"{self.capture.path} holds no arm against {self._cell.baseline}; plot('sweep') shows it.")
        if rows[axis].isna().all():
            return arms_ratio_figure(factors, self._arms)
        found: dict[str, Crossover] = {}
        if axis != DEPTH and self._arms.b is not None:
            at = crossover(rows[rows["arm"] == self._arms.b])
            found = {self._arms.b: at} if at is not None else {}
        return ratio_figure(factors, axis, self._arms, found)

    def _of_the_cell(self, rows: pd.DataFrame) -> pd.DataFrame:
        for key, size in zip(("n_prompt", "n_gen", "n_ubatch", "n_depth"), self._cell.sizes, strict=True):
            rows = rows[rows[key].isna() if size is None else rows[key] == size]
        return rows

    def timeline(self) -> go.Figure:
        """A typical pass of the baseline above one of the arm."""
        passes = self._of_the_cell(self.capture.passes)
        arms = [arm for arm in (self._cell.baseline, self._arms.b) if arm is not None]
        shown = [int(typical_passes(passes[passes["arm"] == arm])[0]) for arm in arms]
        started = self.capture.passes.set_index("pass_id")["t_start"]
        if started[shown].isna().any():  # a recording without any work of a device
            raise HprofError(f"{self.capture.path} recorded no copies or kernels, so there is no timeline to draw.")
        by_stream = self.capture.manifest.source != "hprof"
        lines = [load_timeline(self.capture, [one], origin_ns=int(started[one]), by_stream=by_stream) for one in shown]
        if not any(line.lanes for line in lines):
            raise HprofError(f"{self.capture.path} recorded no copies or kernels, so there is no timeline to draw.")
        return busy_figure(lines, arms)

    def time(self) -> go.Figure:
        figures = self._of_the_cell(self.capture.figures())
        at_work = {name: arm.n_devices for name, arm in self._cell.arms.items()}
        spent = typical_time_spent(figures, figures["arm"].map(at_work)).reindex(list(self._cell.arms))
        if spent[["compute_ns", "hidden_ns", "exposed_ns"]].isna().all(axis=None):
            raise HprofError(f"{self.capture.path} recorded no copies or kernels, so where time went is unknown.")
        return spent_figure(spent, list(spent.index))

    def layers(self) -> go.Figure:
        arm = self.arm or self._cell.baseline
        of_the_cell = self._of_the_cell(self.capture.passes)["pass_id"]
        rows = self.capture.figures("layer", arm=arm)
        rows = rows[rows["pass_id"].isin(of_the_cell)]
        if rows.empty:
            raise HprofError(f"{self.capture.path} says of no event which layer it belongs to (docs/importing.md).")
        return layer_figure(typical_layers(rows[rows["ubatch"] == rows["ubatch"].min()]))
