"""The folder whose captures are shown. Captures are found by name inside it, never by path; traces that a reader
uploads or picks are imported into it under safe names. Nothing outside it is read or written.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from executor.errors import HprofError
from profiler import DEFAULT_TRACES
from profiler.capture import CaptureSummary, list_captures
from profiler.cutting import cut_capture
from profiler.importers import TraceInput, import_files
from profiler.importers.base import file_endings, without_ending
from profiler.importers.cut import ArmRange
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


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that came from a browser."""

    name: str
    content: IO[bytes]


def import_traces(root: TraceRoot, sources: Sequence[Upload | TraceFile], arms: Sequence[str] = ()) -> str:
    """Import uploads and files that lie in the root as one capture; gives its name. arms: a name for each of several,
    the first being the baseline.

    Raises HprofError for what cannot be read; its text names no folder of the server.
    """
    lying = files_in(root)
    with tempfile.TemporaryDirectory(prefix="hprof-") as folder:
        paths = []
        for number, source in enumerate(sources):
            if isinstance(source, Upload):
                place = Path(folder, str(number))  # two may have one name
                place.mkdir()
                paths.append(place / safe_name(source.name))
                with paths[-1].open("wb") as out:
                    shutil.copyfileobj(source.content, out)
            elif source in lying:
                paths.append(Path(root.url, source.name))
            else:
                raise HprofError("the file is no longer in the trace root; choose another one.")
        try:
            return _import_into(root, paths, arms)
        except HprofError as error:
            raise HprofError(_without_folders(str(error), paths)) from error


def cut_into_arms(root: TraceRoot, found: CaptureRef, ranges: Sequence[ArmRange], argv: Sequence[str]) -> str:
    """Write stretches of an imported capture as the arms of a new one in the root; gives its name.

    Raises HprofError for stretches that cannot be arms.
    """
    name = _free_name(root, f"{found.name}-arms")
    cut_capture(found.path, ranges, f"{root.url.rstrip('/')}/{name}", argv=argv)
    return name


def _without_folders(text: str, paths: Sequence[Path]) -> str:
    for path in paths:
        text = text.replace(f"{path.parent}{os.sep}", "")
    return text


def safe_name(file_name: str) -> str:
    """The last part of a name, with nothing in it that a path could mean: `../../a b.sqlite` is `a-b.sqlite`."""
    last = re.split(r"[\\/]", file_name)[-1]
    return _UNSAFE.sub("-", last).lstrip(".-")[:120] or "trace"


def _import_into(root: TraceRoot, paths: Sequence[Path], arms: Sequence[str]) -> str:
    name = _free_name(root, without_ending(paths[0].name) or "trace")
    named = [TraceInput(path, arm) for arm, path in zip(arms, paths, strict=True)] if arms else []
    words = [word for one in named for word in ("--arm", f"{one.arm}={one.path.name}")] or [path.name for path in paths]
    import_files(named or paths, f"{root.url.rstrip('/')}/{name}", argv=["hprof", "import", *words])
    return name


def _free_name(root: TraceRoot, stem: str) -> str:
    """The stem, or with a number where the root has something of that name."""
    taken = set(Store(root.url).entries())
    return next(name for name in (stem, *(f"{stem}-{n}" for n in range(2, 100_000))) if name not in taken)
