"""Where an export's bytes go: nothing is in place before all of it is written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from profiler.storage.store import whole_file


@contextmanager
def output_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which becomes `path` when the block ends; a failure leaves what was there. Raises OSError.

    A link stays one, and what it leads to is replaced; a pipe or a device, which no file may replace, is written to.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    with whole_file(path.resolve()) as file:
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
