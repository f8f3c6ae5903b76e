"""Where an export's bytes go: nothing is in place before all of it is written."""

from __future__ import annotations

import fcntl
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import IO

from executor.files import is_under_way, whole_file


@contextmanager
def output_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which becomes `path` when the block ends; a failure leaves what was there. Raises OSError.

    A link stays one, and what it leads to is replaced; a pipe or a device, which no file may replace, is written to.
    What a killed export left of the same file goes.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    with suppress(FileNotFoundError):
        path.stat()  # raises for a link that leads to itself
    target = path.resolve()
    remove_left_over(target)
    with whole_file(target) as file:
        with suppress(OSError):  # a file system without locks: what a kill leaves there stays
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):
            shutil.copymode(path, file.name)
        yield file


@contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """The folder, there for the block; one that was made for it does not stay if nothing came to be in it."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise


def remove_left_over(target: Path) -> None:
    """Remove the unfinished files of `target` that no process has locked: those of killed ones."""
    for left_over in target.parent.glob(f".{escape(target.name)}.*.tmp"):
        if not re.fullmatch(rf"\.{re.escape(target.name)}\.\d+\.tmp", left_over.name):
            continue  # another file's, whose name begins alike
        with suppress(OSError), left_over.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left_over.unlink()


def holds_only_left_over(path: Path) -> bool:
    """Whether `path` is a folder in which a killed export got nothing into its place."""
    return path.is_dir() and all(is_under_way(entry.name) for entry in path.iterdir()) and any(path.iterdir())
