"""Nsight Systems exports: SQLite of schema 2.9.1 to 3.28, parquetdir, arrowdir, and `.nsys-rep` through nsys."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from executor.errors import HprofError
from profiler.importers.base import Imported, ImportOptions
from profiler.importers.nsys.build import build
from profiler.importers.nsys.device_rows import KERNEL, MEMCPY
from profiler.importers.nsys.folder import FolderTables
from profiler.importers.nsys.host_rows import RUNTIME
from profiler.importers.nsys.nvtx import NVTX
from profiler.importers.nsys.report_file import exported
from profiler.importers.nsys.sqlite import SqliteTables
from profiler.importers.nsys.tables import Tables

__all__ = ["read"]

_SIGNS = ("META_DATA_EXPORT", "EXPORT_META_DATA", "StringIds", KERNEL, MEMCPY, RUNTIME, NVTX)
REPORT_SUFFIXES = (".nsys-rep", ".qdrep")


def read(path: Path, _options: ImportOptions) -> Imported:
    """Read one export. Raises HprofError for a file that is none, or that is damaged."""
    with ExitStack() as stack:
        if path.suffix.lower() in REPORT_SUFFIXES:
            path = stack.enter_context(exported(path))
        tables: Tables = FolderTables(path) if path.is_dir() else SqliteTables(path)
        stack.callback(tables.close)
        if not any(tables.columns(table) for table in _SIGNS):
            raise HprofError(
                f"{path} holds none of the tables of an Nsight Systems export; give the file or folder that "
                "`nsys export` wrote."
            )
        return build(tables)
