"""Launches whose work is not in the file: a trace that was cut, a profiler that lost events, a graph being recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from profiler.arithmetic.joins import Int64

_LAUNCH: Final = re.compile(r"(?:cuda|cu|hip)(?:Launch(?:Cooperative)?Kernel|Memcpy|Memset)")


def unanswered_launches(call_names: Int64, texts: Sequence[str], has_work: npt.NDArray[np.bool_]) -> list[str]:
    """A sentence where calls that launch kernels, copies or memsets have no device row.

    call_names: a code of `texts` for each call of the host, negative: none. has_work: whether a device row names it.
    Complete traces have none but for launches into a graph that is being recorded.
    """
    launches = np.array([_LAUNCH.match(text) is not None for text in texts] + [False], np.bool_)[call_names]
    n_launches, n_missing = int(np.count_nonzero(launches)), int(np.count_nonzero(launches & ~has_work))
    if not n_missing:
        return []
    return [
        f"the work of {n_missing:,} of {n_launches:,} launches and copies of the host: no device row carries "
        "their id (the trace was cut there, events were lost, or a CUDA graph recorded them)"
    ]
