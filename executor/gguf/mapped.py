"""A file mapped read-only: as bytes to parse, as a tensor that shares the pages, and for reads that fail cleanly."""

from __future__ import annotations

import mmap
import os
import warnings
import weakref
from pathlib import Path

import torch

from executor.errors import HprofError


class MappedFile:
    """Stays mapped while this object, `memory` or a view of `tensor` is alive; HprofError when it cannot be opened.

    `memory`: the bytes; `tensor`: the same as uint8, 1-D. To write to `tensor` ends the process.
    """

    def __init__(self, path: Path, smallest_bytes: int) -> None:
        self.path = path
        try:
            if not path.is_file():  # a pipe, say, would block for ever
                raise HprofError(f"{path}: {'not a file' if path.exists() else 'no such file'}; give a model's path.")
            self._descriptor = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._descriptor)
            self.n_bytes = os.fstat(self._descriptor).st_size
            if self.n_bytes < smallest_bytes:
                raise HprofError(f"{path}: only {self.n_bytes} bytes long, too short for a model; download it again.")
            self.memory = mmap.mmap(self._descriptor, self.n_bytes, access=mmap.ACCESS_READ)
        except OSError as error:
            raise HprofError(
                f"{path}: cannot be read ({error.strerror}); check the name and its permissions."
            ) from error
        self.tensor = _as_tensor(self.memory)

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out` from byte `offset`.

        A copy out of the map would end the process (SIGBUS) if the file has shrunk; a read says so.
        """
        done = 0
        while done < len(out):
            step = os.preadv(self._descriptor, [out[done:]], offset + done)
            if not step:
                raise HprofError(f"{self.path}: the file has become shorter since it was opened; open it again.")
            done += step

    def will_need(self, offset: int, n_bytes: int) -> None:
        """posix_madvise(WILLNEED): the pages of these bytes are read in the background."""
        if hasattr(mmap, "MADV_WILLNEED"):
            start = offset - offset % mmap.PAGESIZE
            self.memory.madvise(mmap.MADV_WILLNEED, start, offset + n_bytes - start)

    def read(self, offset: int, n_bytes: int) -> bytearray:
        """A copy of `n_bytes` from byte `offset`; raises as `read_into` does."""
        buffer = bytearray(n_bytes)
        self.read_into(offset, memoryview(buffer))
        return buffer


def _as_tensor(memory: mmap.mmap) -> torch.Tensor:
    """A private writable map would give no warning, but pinning that would copy every page of the file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(memory, dtype=torch.uint8)
