"""The control page of a recording: a small file that hprof and all recorded processes map (`native/format.hpp`).

Processes look at it 50 times a second, and know from it alone whether to record: hprof may be killed meanwhile, and
limits hold all the same. Times are those of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path
from typing import Final

PAGE_NAME: Final = "control"
_SIZE: Final = 4096
_MAGIC: Final = b"hprofctl"
_VERSION: Final = 1
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_LONGEST_S: Final = 1e9  # 30 years: what is longer never comes
_PAUSED, _FROM, _UNTIL, _MAX, _FULL, _FINISHED = 12, 16, 24, 32, 48, 52  # offsets in the page


class ControlPage:
    """The page of one recording, written by hprof alone but for the count of bytes (at 40) and what stopped it."""

    def __init__(self, folder: Path, max_bytes: int, after_s: float | None, for_s: float | None) -> None:
        path = folder / PAGE_NAME
        path.write_bytes(_MAGIC + _U32.pack(_VERSION) + bytes(_SIZE - 12))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _SIZE)
        begin_ns = time.monotonic_ns() + _ns(after_s or 0)
        self._put(_U64, _MAX, max_bytes)
        self.record_between(begin_ns if after_s else 0, begin_ns + _ns(for_s) if for_s is not None else 0)

    def record_between(self, from_ns: int, until_ns: int) -> None:
        """Times of CLOCK_MONOTONIC; 0: at once, and without an end."""
        self._put(_U64, _FROM, from_ns)
        self._put(_U64, _UNTIL, until_ns)

    def pause(self, paused: bool) -> None:
        """Stop every process's recording, or let it go on."""
        self._put(_U32, _PAUSED, int(paused))

    def finish(self) -> None:
        """Say that nobody waits any more: what runs on records nothing."""
        self._put(_U32, _FINISHED, 1)

    @property
    def full(self) -> str | None:
        """Why recording stopped early: `limit reached` or `disk full`."""
        return {1: "limit reached", 2: "disk full"}.get(_U32.unpack_from(self._page, _FULL)[0])

    def close(self) -> None:
        """Let go of the page; the file stays."""
        self._page.close()

    def _put(self, form: struct.Struct, offset: int, value: int) -> None:
        form.pack_into(self._page, offset, value)


def _ns(seconds: float) -> int:
    return round(min(seconds, _LONGEST_S) * 1e9)
