"""Whether a folder may become a new capture's, before anything is written to it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from executor.errors import HprofError
from executor.files import is_under_way
from profiler.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, is_manifest
from profiler.schema import TABLES
from profiler.storage.parts import mark_of
from profiler.storage.store import Store

ELSEWHERE: Final = "-o; in Python another path"
"""How a caller, of the command line or of Python, says that a capture is to go elsewhere."""
REPLACING: Final = "--force; in Python force=True"


def check_place(path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Raise HprofError now where `new_capture` would: before long work whose capture would find no place."""
    store = Store(path)
    claim(store, force=force)
    if store.is_local:
        _check_writable(Path(store.where()))


def _check_writable(folder: Path) -> None:
    """HprofError where the folder, or the nearest one above it that is there, takes no file."""
    above = next((one for one in (folder, *folder.parents) if one.is_dir()), folder)
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        why = error.strerror or error
        raise HprofError(f"cannot write {folder}: {why}; choose another folder ({ELSEWHERE}).") from error


def claim(store: Store, *, force: bool) -> bool:
    """Check that the folder may become ours: empty, or a capture that `force` allows to replace. Changes nothing.

    Whether there was no capture. What a killed import left is none, and counts as nothing.
    """
    if not store.is_folder() and store.exists():
        raise HprofError(f"{store.where()} is a file, where a capture needs a folder; choose another ({ELSEWHERE}).")
    entries = [name for name in store.entries() if not is_under_way(name)]
    if not entries or (MANIFEST_NAME not in entries and all(_is_left_over(store, name) for name in entries)):
        return True
    if MANIFEST_NAME not in entries or not is_manifest(store.read(MANIFEST_NAME, MAX_MANIFEST_BYTES)):
        raise HprofError(f"{store.where()} holds other files and no capture; choose another folder ({ELSEWHERE}).")
    if not force:
        raise HprofError(
            f"{store.where()} already holds a capture; choose another folder ({ELSEWHERE}), or replace it "
            f"({REPLACING})."
        )
    return False


def _is_left_over(store: Store, name: str) -> bool:
    """Whether it is a table's folder that holds nothing but parts which never got a manifest."""
    files = store.entries(name) if name in TABLES else ["other people's"]
    return all(is_under_way(file) or mark_of(file) for file in files)
