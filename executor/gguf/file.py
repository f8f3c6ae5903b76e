"""Opens a GGUF model, in one file or split into several, as a source of weights.

Files are mapped read-only: bytes to parse, tensors that share the pages, and reads that fail cleanly.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from gguf import Keys

from executor.errors import HprofError
from executor.gguf.header import Header, PlacedTensor, place_tensors, read_header
from executor.model import TensorInfo

_SMALLEST_FILE: Final = 24  # magic, version, two counts
_MAX_PARTS: Final = 1000
_SAMPLE_BYTES: Final = 4096
_PART_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")


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


@dataclass(frozen=True, slots=True)
class _GgufPart:
    """One of a model's files."""

    file: MappedFile
    header: Header
    tensors: Mapping[str, PlacedTensor]


class GgufFile:
    """A GGUF model's metadata, tensors and bytes (a `WeightSource`).

    `metadata`: scalars, strings and lists, as the file has them; an array of more than 4096 items is a
    `SkippedArray`. `tensors`: by name, in the file's order, shapes in numpy order.
    """

    def __init__(self, parts: list[_GgufPart]) -> None:
        self.path = parts[0].file.path
        self.metadata: Mapping[str, Any] = parts[0].header.metadata
        self._parts = parts
        self._homes = {name: part for part in parts for name in part.tensors}
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {name: tensor.info for part in parts for name, tensor in part.tensors.items()}
        )

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Fill `out` (uint8, 1-D, n_bytes long, contiguous, on the CPU) with the tensor's bytes."""
        part = self._homes[name]
        tensor = part.tensors[name]
        if out.dtype != torch.uint8 or out.shape != (tensor.info.n_bytes,):
            raise ValueError(f"{name} has {tensor.info.n_bytes} bytes; got {out.dtype} {tuple(out.shape)}")
        part.file.read_into(tensor.file_offset, out.numpy().data)

    def read_range_into(self, name: str, start: int, out: torch.Tensor) -> None:
        """Fill `out` (uint8, 1-D, contiguous, on the CPU) with the tensor's bytes from byte `start` on."""
        part = self._homes[name]
        tensor = part.tensors[name]
        if start < 0 or start + out.numel() > tensor.info.n_bytes:
            raise ValueError(f"{name} has {tensor.info.n_bytes} bytes; asked for {out.numel()} from {start}")
        part.file.read_into(tensor.file_offset + start, out.numpy().data)

    def mapped(self, name: str) -> torch.Tensor:
        """The tensor's bytes, uint8 and 1-D, in the read-only memory map; it outlives this object."""
        part = self._homes[name]
        tensor = part.tensors[name]
        return part.file.tensor[tensor.file_offset : tensor.end]

    def will_need(self, name: str) -> None:
        """Ask the system to read the tensor's pages into its cache, ahead of their first use."""
        part = self._homes[name]
        tensor = part.tensors[name]
        part.file.will_need(tensor.file_offset, tensor.info.n_bytes)

    def digest(self) -> str:
        """16 hex digits of a sha256 over each file's size, header and 4 KiB out of the middle of each tensor.

        Names the weights in milliseconds whatever their size; a file changed elsewhere only keeps its digest.
        """
        sha = hashlib.sha256()
        for part in self._parts:
            sha.update(part.file.n_bytes.to_bytes(8, "little"))
            sha.update(part.file.read(0, part.header.n_bytes))
            for tensor in part.tensors.values():
                n_bytes = min(_SAMPLE_BYTES, tensor.info.n_bytes)
                sha.update(part.file.read(tensor.file_offset + (tensor.info.n_bytes - n_bytes) // 2, n_bytes))
        return sha.hexdigest()[:16]


def open_gguf(path: Path) -> GgufFile:
    """Map the model at `path` (of a split model: its first part) and check all that its header says.

    HprofError, one sentence, for whatever is wrong with it. Reads the header only, not the weights.
    """
    first = _open_part(path)
    n_parts = first.header.metadata.get(Keys.Split.LLM_KV_SPLIT_COUNT, 1)
    parts = [first]
    if n_parts not in (0, 1):
        parts += [_open_part(other) for other in _other_paths(path, n_parts)]
        _check_parts(parts)
    if not any(part.tensors for part in parts):
        raise HprofError(f"{path}: holds no tensors (a vocabulary only?); give a model with weights.")
    return GgufFile(parts)


def _open_part(path: Path) -> _GgufPart:
    file = MappedFile(path, _SMALLEST_FILE)
    header = read_header(file.memory, path)
    return _GgufPart(file, header, place_tensors(header, path, file.n_bytes))


def _other_paths(path: Path, n_parts: object) -> list[Path]:
    """Parts 2 to `n_parts` of a model that llama-gguf-split cut up: in the same folder, named alike."""
    match = _PART_NAME.fullmatch(path.name)
    if type(n_parts) is not int or not 1 < n_parts <= _MAX_PARTS or not match or int(match["count"]) != n_parts:
        raise HprofError(
            f"{path}: it says that it is one of {n_parts!r} parts, so it must be named "
            "NAME-00001-of-COUNT.gguf; give the part as llama-gguf-split named it, beside the others."
        )
    names = [f"{match['stem']}-{i:05}-of-{n_parts:05}.gguf" for i in range(1, n_parts + 1)]
    if path.name != names[0]:
        raise HprofError(f"{path}: not the first part of the model; give {names[0]}.")
    return [path.with_name(name) for name in names[1:]]


def _check_parts(parts: list[_GgufPart]) -> None:
    """Parts in order, no tensor twice, and as many as the first part says."""
    for i, part in enumerate(parts):
        if part.header.metadata.get(Keys.Split.LLM_KV_SPLIT_NO) != i:
            raise HprofError(f"{part.file.path}: its header does not say that it is part {i + 1}; download it again.")
    path, n_tensors = parts[0].file.path, sum(len(part.tensors) for part in parts)
    if len({name for part in parts for name in part.tensors}) != n_tensors:
        raise HprofError(f"{path}: two of its parts hold the same tensor; download all parts again.")
    expected = parts[0].header.metadata.get(Keys.Split.LLM_KV_SPLIT_TENSORS_COUNT, n_tensors)
    if expected != n_tensors:
        raise HprofError(f"{path}: its parts hold {n_tensors} tensors, not {expected!r}; download all parts again.")
