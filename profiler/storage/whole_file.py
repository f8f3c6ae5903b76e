"""Writes a local file under another name, then renames it: a reader sees the old file or the new one, always whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def whole_file(path: Path, *, is_new: bool = False) -> Iterator[IO[bytes]]:
    """A file to write to, which becomes `path` when the block ends; what goes wrong in it leaves `path` as it was.

    `is_new`: of two processes that put the same file there at once, one gets a FileExistsError. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if is_new and _is_linked(temporary, path):
            temporary.unlink()
        else:
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def is_under_way(name: str) -> bool:
    """Whether a file's name is one that is not in place yet, or that a killed process left."""
    return name.startswith(".") and name.endswith(".tmp")


def _is_linked(source: Path, target: Path) -> bool:
    """Give `source` the name `target` too, or raise where that is taken; False where the file system has no links."""
    try:
        target.hardlink_to(source)
    except FileExistsError:
        raise
    except OSError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable; some file systems have no such call, and lose at most this file."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
