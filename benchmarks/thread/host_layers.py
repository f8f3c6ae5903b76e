"""What a layer on the host costs a generated token: one arm's decode under several placements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pandas as pd

from benchmarks.thread.markdown import number, table
from profiler.capture import Capture

_LEVEL: Final = 0.95


@dataclass(frozen=True, slots=True)
class Slope:
    """Decode time of a token over the layers on the host: a straight line, with the slope's 95 % interval."""

    ms_a_layer: float
    low: float
    high: float
    ms_without: float
    """What is left of a token's time with no layer on the host."""


def decode_by_host_layers(capture: Capture) -> pd.DataFrame:
    """Each measured pass: `n_layers` on the host and `ms` a generated token."""
    host = {arm.name: len(arm.host_layers or ()) for arm in capture.manifest.arms}
    passes = capture.passes[~capture.passes["warmup"]]
    n_decoded = passes["n_gen"] - 1  # the first token is the prompt's
    return pd.DataFrame({"n_layers": passes["arm"].map(host), "ms": passes["decode_ns"] / n_decoded / 1e6})


def slope_of(passes: pd.DataFrame) -> Slope:
    """Theil and Sen's: the median of all pairs' slopes, which a slow pass does not move."""
    from scipy.stats import theilslopes

    found = theilslopes(passes["ms"], passes["n_layers"], alpha=_LEVEL)
    return Slope(float(found.slope), float(found.low_slope), float(found.high_slope), float(found.intercept))


def host_layers_table(capture: Capture) -> str:
    """Decode at each number of host layers, and what one more costs."""
    passes = decode_by_host_layers(capture)
    lines = [
        [str(n), number(one["ms"].median()), f"{number(one['ms'].min())} to {number(one['ms'].max())}", str(len(one))]
        for n, one in passes.groupby("n_layers")
    ]
    at = slope_of(passes)
    return (
        table(["layers with experts on the host", "ms a token", "of passes", "passes"], lines)
        + f"\nOne more layer on the host costs {at.ms_a_layer:.2f} ms a token ({at.low:.2f} to {at.high:.2f}); "
        f"without any, {number(at.ms_without)} ms would be left.\n"
    )
