"""What `hprof.open` gives: a capture that also tells its figures and its report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from profiler.arithmetic.stats import DEFAULT_NOISE
from profiler.capture import Capture

if TYPE_CHECKING:
    import pandas as pd

    from profiler.report.report import Report

Level = Literal["pass", "prefill", "decode", "ubatch", "layer"]
_PASS_COLUMNS: Final = [
    *("pass_id", "arm", "n_ubatch", "n_depth", "n_prompt", "n_gen", "repetition", "order", "boot", "warmup"),
]


class OpenedCapture(Capture):
    """A capture for notebooks and scripts; what measures and judges it is loaded when asked for.

    Inside hprof, what measures and judges takes a plain `Capture`.
    """

    def figures(self, level: Level = "pass") -> pd.DataFrame:
        """Metrics as a frame (docs/metrics.md): one row a pass, a pass's phase, a ubatch or a layer.

        Rows of passes carry the pass's arm and sizes. NaN is null: what the source cannot say.
        """
        from profiler import metrics

        tables = metrics.load_tables(self)
        if level == "layer":
            return metrics.layer_figures(tables.recording)
        if level == "ubatch":
            return metrics.ubatch_figures(tables.ubatches, tables.recording)
        figures = metrics.pass_figures(*tables)[level]
        return self.passes[_PASS_COLUMNS].merge(figures, left_on="pass_id", right_index=True)

    def report(self, noise: float = DEFAULT_NOISE) -> Report:
        """Judge the capture; see `profiler.report.build`."""
        from profiler.report.build import build_report

        return build_report(self, noise=noise)
