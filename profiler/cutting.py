"""An imported capture cut into arms: stretches of its time become the passes of a new capture."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Final

from executor.errors import HprofError
from profiler.capture import Capture
from profiler.importers import Imported, write_capture
from profiler.importers.combine import SourceFile
from profiler.importers.cut import ArmRange, cut_into_arms
from profiler.plain_text import readable
from profiler.schema import TABLES
from profiler.storage.place import ELSEWHERE
from profiler.storage.store import Store

_KEPT_FIELDS: Final = ("created_utc", "machine", "model", "link_h2d_gb_s", "environment", "extra")


def cut_capture(
    path: str | os.PathLike[str],
    ranges: Sequence[ArmRange],
    out: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    argv: Sequence[str] = (),
) -> str:
    """Write stretches of an imported capture as the arms of a new one; gives its address.

    out: where; the capture's own address with `-arms` where it is left out. Raises HprofError for hprof's own captures,
    for one that was cut before, where `out` is the capture itself, and as `cut_into_arms` and `import_files` do.
    """
    capture = Capture.open(path)
    if out is not None and Store(out).where() == Store(capture.path).where():
        raise HprofError(f"{capture.path} is what is cut, and stays; choose another folder ({ELSEWHERE}).")
    told = capture.manifest.extra.get("files")
    files = [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    first = files[0] if files else {}
    name, n_bytes = readable(str(first.get("name", capture.name))), first.get("bytes")
    imported = cut_into_arms(_as_read(capture), ranges)
    source = SourceFile(name, n_bytes if isinstance(n_bytes, int) else 0, None, imported)
    return write_capture([source], out or f"{capture.path.rstrip('/')}-arms", argv, force=force)


def _as_read(capture: Capture) -> Imported:
    """An imported capture as it was when its trace had been read."""
    told = capture.manifest
    if told.source == "hprof":
        raise HprofError(f"{capture.name} was measured by hprof run, which has arms already; cut an imported trace.")
    if "ranges" in told.extra:
        raise HprofError(f"{capture.name} was cut into arms already; cut the trace or capture that it was made from.")
    tables = {name: capture.table(name) for name in TABLES if capture.n_rows(name)}
    fields = {name: getattr(told, name) for name in _KEPT_FIELDS} | {"arms": list(told.arms)}
    return Imported(
        told.source,
        tables,
        fields,
        list(told.cannot_say),
        Counter(told.dropped),
        list(told.warnings),
        faults=told.faults,
    )
