"""Tells two sides that are one measurement under two names, which judges nothing: a folder and its copy, or two imports
of one trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from profiler.compare.data import DeviceChange
from profiler.compare.sides import GroupKey, OpenedSide, Pairs

_TIMES: Final = ("t_start", "t_end", "ttft_ns", "prefill_ns", "decode_ns")
SAME_PASSES: Final = "both sides are the same passes"
"""Why no verdict is due."""


def is_one_capture(a: OpenedSide, b: OpenedSide) -> bool:
    """Whether both sides are of one capture: of one folder, or one of a copy of the other's. A run's id is random."""
    run_ids = [side.capture.manifest.run_id for side in (a, b)]
    return a.capture.path == b.capture.path or (run_ids[0] != "" and run_ids[0] == run_ids[1])


def are_same_passes(a: OpenedSide, b: OpenedSide, x: GroupKey, y: GroupKey) -> bool:
    """Whether a cell and arm of each are the same passes: with equal times, and of one capture, or of one trace, whose
    arms may have other names.
    """
    is_one = x == y if is_one_capture(a, b) else x[0] == y[0] and _is_one_trace(a, b)
    if not is_one:
        return False
    left, right = (side.groups[key][list(_TIMES)].reset_index(drop=True) for side, key in ((a, x), (b, y)))
    return bool(left.notna().any(axis=None)) and left.equals(right)


def same_data_warnings(a: OpenedSide, b: OpenedSide, pairs: Pairs, devices: Sequence[DeviceChange]) -> list[str]:
    """A sentence where the two are the same data, or two parts of a capture and its copy.

    devices: what was compared of captures without passes.
    """
    is_copy = is_one_capture(a, b) and a.capture.path != b.capture.path
    what = "one capture, which was copied" if is_copy else "one trace, which was imported twice"
    if any(are_same_passes(a, b, x, y) for x, y in pairs):
        of = "one capture" if a.capture.path == b.capture.path else what
        return [f"A and B are the same passes of {of}: one measurement held against itself judges nothing."]
    if devices and (is_one_capture(a, b) or _is_one_trace(a, b)) and all(one.a == one.b for one in devices):
        of = "one capture" if is_one_capture(a, b) else "one trace"
        return [f"A and B are the same data, of {of}, which cannot differ."]
    return ["A and B are copies of one capture, so that they are paired as arms of one run."] if is_copy else []


def _is_one_trace(a: OpenedSide, b: OpenedSide) -> bool:
    """Whether two captures were imported from files of the same sizes, begun at the same time, that hold as much. Not
    of files that do not say when: a rate of two decimals may be another run's too.
    """
    told = [
        (manifest.source, manifest.created_utc, manifest.rows, sizes)
        for manifest in (a.capture.manifest, b.capture.manifest)
        if manifest.created_utc and (sizes := _file_sizes(manifest.extra.get("files")))
    ]
    return len(told) == 2 and told[0] == told[1]


def _file_sizes(files: object) -> list[int]:
    """What the manifest, which may be a stranger's, says of the files that it was imported from."""
    found = [file.get("bytes") for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    return sorted(size for size in found if isinstance(size, int))
