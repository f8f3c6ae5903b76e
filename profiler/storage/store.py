"""Where captures live: one folder, local or at any fsspec URL; whole files, renamed into place.

Everything that touches the file system on behalf of a capture goes through `Store`, which keeps two promises:
a reader sees a file whole or not at all, and nothing outside the capture's folder is touched.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from fsspec.implementations.local import LocalFileSystem

from executor.errors import HprofError, first_line
from executor.files import whole_file
from profiler.storage.address import opened, unanswered


class Store:
    """A folder at a path or fsspec URL; names are relative to it, `table/part.parquet` at most two deep."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.url = os.fsdecode(url)
        self._fs, self._root = opened(self.url)
        self.is_local = isinstance(self._fs, LocalFileSystem)
        if not self.is_local and not self.url.partition("://")[2].strip("/"):
            raise HprofError(f"{self.url} names no bucket or folder; write one after the '://'.")

    def where(self, name: str = "") -> str:
        """The full address of `name`, for messages."""
        root = (self._root if self.is_local else self.url).rstrip("/")
        return f"{root}/{name}" if name else root or "/"

    def exists(self, name: str = "") -> bool:
        """Whether the file or folder is there."""
        with _translated(self.where(name), "read"):
            if not self.url.startswith(("http://", "https://")):
                return bool(self._fs.exists(self._path(name)))
            try:
                self._fs.info(self._path(name))
            except FileNotFoundError as error:
                if unanswered(error) is not None:
                    raise
                return False
            return True

    def is_folder(self) -> bool:
        """Whether the address is a folder that is there."""
        with _translated(self.where(), "read"):
            return bool(self._fs.isdir(self._root))

    def signature(self, name: str) -> tuple[int, ...] | None:
        """What changes when a local file is replaced or written to; None in a bucket, or where there is no file."""
        if not self.is_local:
            return None
        with suppress(OSError):
            found = Path(self._path(name)).stat()
            return found.st_ino, found.st_mtime_ns, found.st_size
        return None

    def stamp(self, name: str) -> int:
        """What changes when the file is replaced, of all that a bucket tells of it."""
        with _translated(self.where(name), "read"):
            return hash(str(sorted(self._fs.info(self._path(name)).items())))

    def entries(self, folder: str = "") -> list[str]:
        """Names directly inside `folder`, sorted; empty where it does not exist."""
        with _translated(self.where(folder), "read"):
            if not self._fs.isdir(self._path(folder)):
                return []
            self._check_inside(folder)
            self._fs.invalidate_cache(self._path(folder))
            return sorted(str(p).rstrip("/").rsplit("/", 1)[-1] for p in self._fs.ls(self._path(folder), detail=False))

    def open(self, name: str) -> IO[bytes]:
        """Open for reading; refuses a link that leads out of the folder, and a pipe, which would be waited for."""
        self._check_inside(name)
        if self.is_local and (path := Path(self._path(name))).exists() and not path.is_file():
            raise HprofError(f"{self.where(name)} is not a regular file; remove it.")
        with _translated(self.where(name), "read"):
            return cast("IO[bytes]", self._fs.open(self._path(name), "rb"))

    def read(self, name: str, limit_bytes: int) -> bytes:
        """At most `limit_bytes + 1` bytes of the file, so that the caller sees when it is too large."""
        with self.open(name) as file, _translated(self.where(name), "read"):
            return file.read(limit_bytes + 1)

    def write(self, name: str, data: Any, *, is_new: bool = False) -> None:
        """Put `data` (bytes or an arrow buffer) in place as one whole file.

        `is_new`: of two processes that put the same local file there at once, one gets an HprofError.
        """
        with _translated(self.where(name), "write"):
            if self.is_local:
                path = Path(self._path(name))
                path.parent.mkdir(parents=True, exist_ok=True)
                with whole_file(path, is_new=is_new) as file:
                    file.write(data)
            else:
                self._fs.pipe_file(self._path(name), bytes(data))

    def remove(self, name: str) -> None:
        """Remove one file of the folder."""
        self._check_inside(name)
        with _translated(self.where(name), "remove"):
            self._fs.rm_file(self._path(name))

    def remove_empty(self, folders: Sequence[str]) -> None:
        """Remove those of these folders that are there and empty; a bucket has none to remove."""
        for name in folders if self.is_local else ():
            with suppress(OSError):
                Path(self._path(name)).rmdir()

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def _check_inside(self, name: str) -> None:
        if not self.is_local:
            return
        root = os.path.realpath(self._root)
        target = os.path.realpath(self._path(name))
        if target != root and not target.startswith(root.rstrip(os.sep) + os.sep):
            raise HprofError(f"{self.where(name)} leads out of the capture's folder; remove the link.")


@contextlib.contextmanager
def _translated(where: str, verb: str) -> Any:
    try:
        yield
    except OSError as error:
        raise _told(where, verb, unanswered(error) or error.strerror or first_line(error)) from error
    except HprofError:
        raise
    except Exception as error:
        if "://" not in where:
            raise
        # Each remote file system has errors of its own, such as botocore's for missing credentials.
        raise _told(where, verb, first_line(error)) from error


def _told(where: str, verb: str, reason: str) -> HprofError:
    elsewhere = "free space or choose another folder (-o; in Python another path)"
    advice = "check the address and its permissions" if verb == "read" else elsewhere
    return HprofError(f"cannot {verb} {where}: {reason}; {advice}.")
