"""Imports from the browser: names that come from outside are made safe, and nothing is written outside the root."""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from dashboard.trace_root import TraceRoot, is_inside
from executor.errors import HprofError
from profiler.importers import import_files
from profiler.storage.store import Store

ENDINGS: Final = ["sqlite", "json", "gz", "jsonl", "csv", "md", "sql", "txt"]
_MAX_FILES: Final = 500
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True, slots=True)
class Lying:
    """A trace file directly in the root."""

    name: str
    size: int


def files_in(root: TraceRoot) -> list[Lying]:
    """Trace files directly inside a local root, by name; links that lead out of it are left out."""
    if not root.is_local or not Path(root.url).is_dir():
        return []
    found = sorted(path for path in Path(root.url).iterdir() if path.suffix.removeprefix(".").lower() in ENDINGS)
    return [
        Lying(path.name, path.stat().st_size)
        for path in found[:_MAX_FILES]
        if path.is_file() and is_inside(str(path), root.url)
    ]


def import_upload(root: TraceRoot, file_name: str, content: IO[bytes]) -> str:
    """Import what was uploaded; gives the new capture's name. Raises HprofError for what cannot be read."""
    safe = safe_name(file_name)
    with tempfile.TemporaryDirectory(prefix="hprof-") as folder:
        path = Path(folder, safe)
        with path.open("wb") as out:
            shutil.copyfileobj(content, out)
        return _import(root, path)


def import_lying(root: TraceRoot, picked: Lying | None) -> str:
    """Import a file that lies in the root."""
    if picked is None or picked not in files_in(root):
        raise HprofError("the file is no longer in the trace root; choose another one.")
    return _import(root, Path(root.url, picked.name))


def safe_name(file_name: str) -> str:
    """The last part of a name, with nothing in it that a path could mean: `../../a b.sqlite` is `a-b.sqlite`."""
    last = re.split(r"[\\/]", file_name)[-1]
    return _UNSAFE.sub("-", last).lstrip(".-")[:120] or "trace"


def _import(root: TraceRoot, path: Path) -> str:
    name = _free_name(root, path.name.split(".")[0] or "trace")
    import_files([path], f"{root.url.rstrip('/')}/{name}", argv=["hprof", "import", path.name])
    return name


def _free_name(root: TraceRoot, stem: str) -> str:
    """The stem, or with a number where the root has something of that name."""
    taken = set(Store(root.url).entries())
    return next(name for name in (stem, *(f"{stem}-{n}" for n in range(2, 100_000))) if name not in taken)
