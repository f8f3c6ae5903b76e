"""Turns what other tools recorded into a capture: `import_files` detects, reads, combines and writes."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final

from profiler.importers.base import Imported, Importer, ImportOptions, Kind
from profiler.importers.detect import detect

__all__ = ["ImportOptions", "Imported", "Importer", "Kind", "detect", "read_file"]

# kind -> module with `read(path, options)`; imported when a file of that kind comes
_IMPORTERS: Final[dict[Kind, str]] = {
    "nsys": "profiler.importers.nsys",
    "nsys-stats": "profiler.importers.nsys_stats",
    "kineto": "profiler.importers.kineto",
    "llama-bench": "profiler.importers.llama_bench",
}


def read_file(path: Path, kind: Kind | None = None, options: ImportOptions | None = None) -> Imported:
    """Read one trace with the importer of `kind`, or of the detected kind."""
    module = importlib.import_module(_IMPORTERS[kind or detect(path)])
    read: Importer = module.read
    return read(path, options or ImportOptions())
