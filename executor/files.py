"""Files, read within a limit and written whole: nothing that hprof is given may fill the memory or be waited for, and
nothing that it writes is seen half done.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from executor.errors import HprofError
from executor.units import format_bytes


def bounded_read(path: Path, limit_bytes: int, what: str, advice: str) -> bytes:
    """The whole content of a regular file of at most `limit_bytes`.

    what, advice: end the sentences, as in "is larger than 1 MiB, too large for a model's config; name another file."
    Raises HprofError for a larger file, for one that cannot be read, and for a pipe or device, which may have no end.
    """
    try:
        if path.exists() and not path.is_file():
            raise HprofError(f"{path} is not a regular file; {advice}.")
        with open(path, "rb", opener=_without_waiting) as file:
            # Not by its size, which may grow, and is 0 for files of the system; None where one has nothing to tell yet.
            content = file.read(limit_bytes + 1) or b""
    except OSError as error:
        raise HprofError(f"{path} cannot be read ({error.strerror or error}); {advice}.") from error
    if len(content) > limit_bytes:
        raise HprofError(f"{path} is larger than {format_bytes(limit_bytes)}, too large for {what}; {advice}.")
    return content


def first_bytes(path: Path, n_bytes: int) -> bytes:
    """At most so many from the start of a file, without waiting for one that has nothing to tell. Raises OSError."""
    with open(path, "rb", opener=_without_waiting) as file:
        return file.read(n_bytes) or b""


def _without_waiting(path: str, flags: int) -> int:
    """Open a file: a pipe that has taken its place meanwhile, or a file such as /proc/kmsg, may have no end."""
    return os.open(path, flags | os.O_NONBLOCK)


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


def cache_folder() -> Path:
    """Where hprof keeps what takes long to make, of this user alone. Raises HprofError for a user who has no home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "hprof"
    except RuntimeError as error:
        raise HprofError(
            "there is no home folder to keep a cache in; set XDG_CACHE_HOME to a folder of yours."
        ) from error
