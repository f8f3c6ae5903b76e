"""The folder whose captures are shown. Captures are found by name inside it, never by path; traces that a reader
uploads or picks are imported into it under safe names. Nothing outside it is read or written.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from executor.errors import HprofError
from profiler import DEFAULT_TRACES
from profiler.capture import CaptureSummary, list_captures
from profiler.importers import import_files
from profiler.importers.base import file_endings
from profiler.manifest import MANIFEST_NAME
from profiler.plain_text import readable
from profiler.schema import TABLES
from profiler.storage.store import Store

Fingerprint = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TraceRoot:
    """The folder (or fsspec URL) whose captures are shown; `only` where it was given as one capture."""

    url: str
    only: str | None = None

    @property
    def is_local(self) -> bool:
        return "://" not in self.url


@dataclass(frozen=True, slots=True)
class CaptureRef:
    """A capture of the root: its name, its address, and what its files looked like just now."""

    name: str
    path: str
    fingerprint: Fingerprint

    @property
    def key(self) -> bytes:
        """The path for Streamlit's caches, which take no text that is no UTF-8."""
        return os.fsencode(self.path)


def trace_root(arguments: list[str] | None = None) -> TraceRoot:
    """The root that `hprof dashboard` passed on as `--traces`; a capture's own folder stands for that capture."""
    words = sys.argv[1:] if arguments is None else arguments
    url = words[words.index("--traces") + 1] if "--traces" in words[:-1] else DEFAULT_TRACES
    url = url.rstrip("/") or "/"
    if "://" not in url:
        url = os.path.realpath(url)
        if Path(url, MANIFEST_NAME).is_file():
            return TraceRoot(str(Path(url).parent), readable(Path(url).name))
    return TraceRoot(url)


def captures(root: TraceRoot) -> list[CaptureSummary]:
    """The captures of the root, newest first; links that lead out of it are left out."""
    if root.only is not None:
        found = [one for one in list_captures(root.url) if one.name == root.only]
    else:
        found = list_captures(root.url)
    return [one for one in found if not root.is_local or is_inside(one.path, root.url)]


def find_capture(root: TraceRoot, name: str) -> CaptureRef:
    """The capture of this name. The name may come from anywhere: it is looked up among the root's, never joined.

    Raises HprofError where there is none.
    """
    for one in captures(root):
        if one.name == name:
            return CaptureRef(one.name, one.path, fingerprint(one.path))
    raise HprofError(f"there is no capture '{name}' in {readable(root.url)}; choose one on the left.")


def is_inside(path: str, root: str) -> bool:
    """Whether the path, with its links followed, lies in the root."""
    # Unlike Path.resolve, realpath takes a link that leads to itself.
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def fingerprint(path: str) -> Fingerprint:
    """Times and sizes of the manifest and of each table's parts; a part that is rewritten in place changes them."""
    if "://" not in path:
        manifest = Path(path, MANIFEST_NAME).stat()
        return ((manifest.st_mtime_ns, manifest.st_size), *(_of_folder(Path(path, table)) for table in TABLES))
    return ((Store(path).stamp(MANIFEST_NAME), 0),)


def _of_folder(folder: Path) -> tuple[int, int]:
    """The newest time, and the bytes of all files."""
    if not folder.is_dir():
        return 0, 0
    with os.scandir(folder) as entries:
        found = [entry.stat(follow_symlinks=False) for entry in entries]
    newest_ns = max(one.st_mtime_ns for one in [*found, folder.stat()])
    return newest_ns, sum(one.st_size for one in found)


ENDINGS: Final = file_endings()
_MAX_FILES: Final = 500
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace file directly in the root."""

    name: str
    size: int


def files_in(root: TraceRoot) -> list[TraceFile]:
    """Trace files directly inside a local root, by name; links that lead out of it are left out."""
    if not root.is_local or not Path(root.url).is_dir():
        return []
    found = sorted(path for path in Path(root.url).iterdir() if path.suffix.removeprefix(".").lower() in ENDINGS)
    return [
        TraceFile(path.name, path.stat().st_size)
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
        return _import_into(root, path)


def import_lying(root: TraceRoot, picked: TraceFile | None) -> str:
    """Import a file that lies in the root."""
    if picked is None or picked not in files_in(root):
        raise HprofError("the file is no longer in the trace root; choose another one.")
    return _import_into(root, Path(root.url, picked.name))


def safe_name(file_name: str) -> str:
    """The last part of a name, with nothing in it that a path could mean: `../../a b.sqlite` is `a-b.sqlite`."""
    last = re.split(r"[\\/]", file_name)[-1]
    return _UNSAFE.sub("-", last).lstrip(".-")[:120] or "trace"


def _import_into(root: TraceRoot, path: Path) -> str:
    name = _free_name(root, path.name.split(".")[0] or "trace")
    import_files([path], f"{root.url.rstrip('/')}/{name}", argv=["hprof", "import", path.name])
    return name


def _free_name(root: TraceRoot, stem: str) -> str:
    """The stem, or with a number where the root has something of that name."""
    taken = set(Store(root.url).entries())
    return next(name for name in (stem, *(f"{stem}-{n}" for n in range(2, 100_000))) if name not in taken)
