"""Captures of torch.profiler's steps that older versions of hprof imported: what their passes cannot say."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profiler.manifest import Manifest


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
