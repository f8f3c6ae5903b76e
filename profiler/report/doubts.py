"""Sentences on what makes a capture's figures doubtful: windows that older versions of hprof cut wrongly, and values
that lie far off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Flags, Floats
from executor.units import format_share
from profiler.arithmetic.stats import MIN_PAIRS, OUTLIER_MADS, outliers
from profiler.manifest import Manifest
from profiler.metrics import FIGURES, JUDGED
from profiler.report.arm_passes import ArmPasses, CellArms
from profiler.report.measured import what_was_measured

_TOLD_SHARE: Final = 0.05  # fewer move neither a median nor its interval
_MOSTLY: Final = 0.5


def old_steps_warnings(manifest: Manifest, passes: pa.Table) -> list[str]:
    """A sentence where passes are steps whose windows overlap, since an older version cut them by the host.

    passes: a PASSES table. Today's windows of a process do not overlap, and those of merged ranks rightly may.
    """
    if manifest.source != "kineto" or manifest.has_device_steps:
        return []
    # hprof's own ranges tell sizes; torch.profiler's steps do not
    steps = passes.filter(pc.and_(pc.is_null(passes["n_ubatch"]), pc.is_valid(passes["t_start"])))
    start, end = (steps[name].to_numpy() for name in ("t_start", "t_end"))
    order = np.argsort(start, kind="stable")
    n_overlapping = int(np.count_nonzero(end[order][:-1] > start[order][1:]))
    if not n_overlapping:
        return []
    return [
        f"{n_overlapping:,} of {len(start):,} profiler steps end after the next one begins: an older version of hprof "
        "cut them by when the host issued their work, and their figures are wrong; import the trace again with this "
        "version."
    ]


def outlier_warnings(cells: CellArms, manifest: Manifest) -> Iterator[str]:
    """One sentence with the worst share of each figure; nothing below a twentieth."""
    arms = [(arm, passes) for of_cell in cells.values() for arm, passes in of_cell.items()]
    worst = [found for name in JUDGED if (found := _worst(arms, name)) is not None]
    if not worst:
        return
    told = [f"{FIGURES[name].label} of {arm} {format_share(share)}" for share, arm, name, _ in worst]
    are_first = manifest.source == "llama-bench" and all(first >= _MOSTLY for *_, first in worst)
    if what_was_measured(manifest).is_exact:
        cause = "nothing was timed, so the work itself differed between repetitions, as the experts chosen do"
    elif are_first:
        cause = "most are the first repetition of a process, which llama-bench often runs slower; medians hardly mind"
    else:
        cause = "if other programs were running, close them and repeat"
    yield (
        f"Outliers, more than {OUTLIER_MADS:.0f} median deviations off, are kept. Most of one arm in one cell: "
        f"{', '.join(told)}; {cause}."
    )


def _worst(arms: Sequence[tuple[str, ArmPasses]], name: str) -> tuple[float, str, str, float] | None:
    """(share, arm, figure, share of the outliers that are first repetitions) of the arm with the most.

    arms: by name, of each cell.
    """
    found = []
    for arm, passes in arms:
        is_known = ~np.isnan(passes.values[name])
        if np.count_nonzero(is_known) < MIN_PAIRS:  # of fewer, deviations are chance
            continue
        is_far = outliers(passes.values[name][is_known])
        if is_far.mean() > _TOLD_SHARE:
            is_first = _is_first(passes.boots[is_known], passes.repetitions[is_known])
            found.append((float(is_far.mean()), arm, name, float(is_first[is_far].mean())))
    return max(found, default=None)


def _is_first(boots: Floats, repetitions: Floats) -> Flags:
    """Which passes are the first repetition of their process."""
    first = pd.Series(repetitions).groupby(boots).transform("min")
    return np.asarray(repetitions == first.to_numpy(), np.bool_)
