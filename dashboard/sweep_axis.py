"""What a sweep can run along: the ubatch, the depth, or prompts of several sizes."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from profiler.report.sweep import Crossover

UBATCH: Final = "n_ubatch"
DEPTH: Final = "n_depth"
PROMPT: Final = "n_prompt"
BATCH: Final = "batch"  # prompts that are one ubatch: what goes through the layers together is the prompt
TITLES: Final = {UBATCH: "over ubatch", DEPTH: "over depth", PROMPT: "over prompt"}
_FIXED: Final = {
    UBATCH: ("n_prompt", "n_gen", "n_depth"),
    DEPTH: ("n_prompt", "n_gen", "n_ubatch"),
    PROMPT: ("n_gen", "n_ubatch", "n_depth"),
    BATCH: ("n_gen", "n_ubatch", "n_depth"),
}


def rows_over(rows: pd.DataFrame, axis: str, sizes: Any, free: str | None = None) -> pd.DataFrame:
    """The rows of `sweep_figures` that differ from the cell `sizes` along this axis (and the size `free`) alone.

    Of BATCH: prompts that fit into one ubatch, whose length then is their `n_ubatch`, as min(prompt, ubatch) is.
    """
    for size in _FIXED[axis]:
        if size == free:
            continue
        value = getattr(sizes, size)
        rows = rows[rows[size].isna() if value is None else rows[size] == value]
    return one_ubatch(rows) if axis == BATCH else rows


def one_ubatch(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose prompt is a single ubatch, with its tokens as `n_ubatch`."""
    single = rows[(rows["n_prompt"] > 0) & (rows["n_prompt"] <= rows["n_ubatch"])]
    return single.assign(n_ubatch=single["n_prompt"])


def crossing(at: Crossover, axis: str) -> str:
    """`of about 128 tokens (95 % interval 115 to 142)`, or between which sizes, and what to measure to know."""
    if at.n_ubatch is None:
        option = "-ub" if axis == UBATCH else "-p"
        return (
            f"somewhere between {at.below:,.0f} and {at.above:,.0f} tokens (sizes between would tell: "
            f"{option} {at.sizes_between})"
        )
    bounds = f" (95 % interval {at.low:,.0f} to {at.high:,.0f})" if at.low is not None and at.high is not None else ""
    return f"of about {at.n_ubatch:,.0f} tokens{bounds}"


def axes_of(rows: pd.DataFrame, sizes: Any) -> list[str]:
    """The axes along which there is more than one size; the ubatch where there is none."""
    varied = [axis for axis in (UBATCH, DEPTH) if rows_of_workload(rows, sizes)[axis].nunique() > 1]
    prompts = rows[(rows["n_gen"] == sizes.n_gen) & (rows["n_prompt"] > 0)] if sizes.n_gen is not None else rows
    varied += [PROMPT] if prompts["n_prompt"].nunique() > 1 else []
    return varied or [UBATCH]


def rows_of_workload(rows: pd.DataFrame, sizes: Any) -> pd.DataFrame:
    """Rows of the cell's prompt and generated tokens."""
    for size in ("n_prompt", "n_gen"):
        value = getattr(sizes, size)
        rows = rows[rows[size].isna() if value is None else rows[size] == value]
    return rows
