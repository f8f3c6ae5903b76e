"""Opens a trace as plain bytes, decompressing gzip within bounds."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from executor.errors import HprofError

MAX_BYTES: Final = 64 * 2**30  # of JSON; a trace of 300 million events
MAX_RATIO: Final = 250  # real traces compress 10 to 60 times
_RATIO_FROM_BYTES: Final = 64 * 2**20  # small traces of few names may compress better; they do no harm
_GZIP: Final = b"\x1f\x8b"


class Source:
    """Reads blocks of JSON bytes; `truncated` says why the end is missing, once it was found missing."""

    def __init__(self, path: Path, raw: BinaryIO, *, max_bytes: int, max_ratio: int) -> None:
        self.path = path
        self.n_read = 0
        self.truncated: str | None = None
        self._raw = raw
        self._limits = (max_bytes, max_ratio)
        self._compressed = raw.read(2) == _GZIP
        raw.seek(0)
        # gzip's read() drops all that it has unpacked of a block when the data breaks off inside it; read1() does not
        self._read: Callable[[int], bytes] = gzip.GzipFile(fileobj=raw).read1 if self._compressed else raw.read

    def read(self, n_bytes: int) -> bytes:
        """Up to `n_bytes` more; empty at the end. HprofError when the file unpacks to more than it may."""
        if self.truncated is not None:
            return b""
        try:
            block = self._read(n_bytes)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self.truncated = f"the gzip data is damaged or cut off ({error})"
            return b""
        except OSError as error:
            raise HprofError(f"{self.path} cannot be read: {error.strerror}; check the disk.") from error
        self.n_read += len(block)
        self._check_limits()
        return block

    def _check_limits(self) -> None:
        max_bytes, max_ratio = self._limits
        if self.n_read > max_bytes:
            raise HprofError(f"{self.path} holds more than {max_bytes:,} bytes of JSON, the limit; record fewer steps.")
        if self._compressed and self.n_read > max(_RATIO_FROM_BYTES, max_ratio * self._raw.tell()):
            raise HprofError(
                f"{self.path} unpacks to more than {max_ratio} times its size, which no trace does; "
                "unpack it yourself if you trust it, and import the .json."
            )


@contextmanager
def open_source(path: Path, *, max_bytes: int = MAX_BYTES, max_ratio: int = MAX_RATIO) -> Iterator[Source]:
    """The trace at `path`, plain or gzip by content."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise HprofError(f"{path} cannot be read: {error.strerror}; check the path and its permissions.") from error
    with raw:
        yield Source(path, raw, max_bytes=max_bytes, max_ratio=max_ratio)
