"""The folder whose captures are shown: they are found by name inside it, never by path."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import fsspec

from executor.errors import HprofError
from profiler.capture import CaptureSummary, list_captures
from profiler.manifest import MANIFEST_NAME
from profiler.schema import TABLES

Fingerprint = tuple[tuple[int, int], ...]
DEFAULT_ROOT: Final = "traces"


@dataclass(frozen=True, slots=True)
class TraceRoot:
    """The folder (or fsspec URL) whose captures are shown; `only` where it was given as one capture."""

    url: str
    only: str | None = None

    @property
    def is_local(self) -> bool:
        return "://" not in self.url


@dataclass(frozen=True, slots=True)
class Found:
    """A capture of the root: its name, its address, and what its files looked like just now."""

    name: str
    path: str
    fingerprint: Fingerprint


def trace_root(arguments: list[str] | None = None) -> TraceRoot:
    """The root that `hprof dashboard` passed on as `--traces`; a capture's own folder stands for that capture."""
    words = sys.argv[1:] if arguments is None else arguments
    url = words[words.index("--traces") + 1] if "--traces" in words[:-1] else DEFAULT_ROOT
    url = url.rstrip("/") or "/"
    if "://" not in url:
        url = os.path.realpath(url)
        if Path(url, MANIFEST_NAME).is_file():
            return TraceRoot(str(Path(url).parent), Path(url).name)
    return TraceRoot(url)


def captures(root: TraceRoot) -> list[CaptureSummary]:
    """The captures of the root, newest first; links that lead out of it are left out."""
    if root.only is not None:
        found = [one for one in list_captures(root.url) if one.name == root.only]
    else:
        found = list_captures(root.url)
    return [one for one in found if not root.is_local or is_inside(one.path, root.url)]


def find_capture(root: TraceRoot, name: str) -> Found:
    """The capture of this name. The name may come from anywhere: it is looked up among the root's, never joined.

    Raises HprofError where there is none.
    """
    for one in captures(root):
        if one.name == name:
            return Found(one.name, one.path, fingerprint(one.path))
    raise HprofError(f"there is no capture '{name}' in {root.url}; choose one on the left.")


def is_inside(path: str, root: str) -> bool:
    """Whether the path, with its links followed, lies in the root."""
    return Path(path).resolve().is_relative_to(Path(root).resolve())


def fingerprint(path: str) -> Fingerprint:
    """Times and sizes of the manifest and of each table's parts; a part that is rewritten in place changes them."""
    if "://" not in path:
        manifest = Path(path, MANIFEST_NAME).stat()
        return ((manifest.st_mtime_ns, manifest.st_size), *(_of_folder(Path(path, table)) for table in TABLES))
    fs, at = fsspec.core.url_to_fs(f"{path}/{MANIFEST_NAME}")
    return ((hash(str(sorted(fs.info(at).items()))), 0),)


def _of_folder(folder: Path) -> tuple[int, int]:
    """The newest time, and the bytes of all files."""
    if not folder.is_dir():
        return 0, 0
    with os.scandir(folder) as entries:
        found = [entry.stat(follow_symlinks=False) for entry in entries]
    newest_ns = max(one.st_mtime_ns for one in [*found, folder.stat()])
    return newest_ns, sum(one.st_size for one in found)
