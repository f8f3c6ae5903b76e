"""Opens a GGUF model, in one file or split into several, as a source of weights."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from gguf import Keys

from executor.errors import HprofError
from executor.gguf_header import Header, read_header
from executor.gguf_tensors import PlacedTensor, place_tensors
from executor.model import TensorInfo

_SMALLEST_FILE: Final = 24
_MAX_PARTS: Final = 1000
_SAMPLE_BYTES: Final = 4096
_PART_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")


@dataclass(frozen=True, slots=True)
class _Part:
    """One file: mapped, and open for reads that do not go through the map."""

    path: Path
    file: Any  # binary, unbuffered
    mapped: torch.Tensor
    header: Header
    tensors: Mapping[str, PlacedTensor]

    def read(self, offset: int, out: memoryview) -> None:
        """Fill `out` from byte `offset`. A read, unlike a copy out of the map, fails cleanly when the file shrank."""
        done = 0
        while done < len(out):
            step = os.preadv(self.file.fileno(), [out[done:]], offset + done)
            if not step:
                raise HprofError(f"{self.path}: the file has become shorter since it was opened; open it again.")
            done += step


class GgufFile:
    """A GGUF model's metadata, tensors and bytes (a `WeightSource`).

    `metadata`: scalars, strings and lists, as the file has them; arrays of more than 4096 items are a
    `SkippedArray`. `tensors`: by name, shapes in numpy order. The files stay mapped while this object or a tensor
    that `mapped` gave is alive.
    """

    def __init__(self, parts: list[_Part]) -> None:
        self.path = parts[0].path
        self.metadata: dict[str, Any] = parts[0].header.metadata
        self._parts = parts
        self._homes = {name: part for part in parts for name in part.tensors}
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {name: tensor.info for part in parts for name, tensor in part.tensors.items()}
        )

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Fill `out` (uint8, 1-D, n_bytes long, contiguous, on the CPU) with the tensor's bytes."""
        part, tensor = self._find(name)
        if out.dtype != torch.uint8 or out.shape != (tensor.info.n_bytes,):
            raise ValueError(f"{name} has {tensor.info.n_bytes} bytes; got {out.dtype} {tuple(out.shape)}")
        part.read(tensor.file_offset, out.numpy().data)

    def mapped(self, name: str) -> torch.Tensor:
        """The tensor's bytes, uint8 and 1-D, in the read-only memory map: to write to them ends the process."""
        part, tensor = self._find(name)
        return part.mapped[tensor.file_offset : tensor.end]

    def digest(self) -> str:
        """16 hex digits of a sha256 over each file's size, header and 4 KiB out of the middle of each tensor.

        Names the weights in milliseconds whatever their size; a file changed elsewhere only keeps its digest.
        """
        sha = hashlib.sha256()
        for part in self._parts:
            sha.update(len(part.mapped).to_bytes(8, "little"))
            sha.update(self._bytes(part, 0, min(part.header.data_start, len(part.mapped))))
            for tensor in part.tensors.values():
                n_bytes = min(_SAMPLE_BYTES, tensor.info.n_bytes)
                middle = tensor.file_offset + (tensor.info.n_bytes - n_bytes) // 2
                sha.update(self._bytes(part, middle, n_bytes))
        return sha.hexdigest()[:16]

    def _find(self, name: str) -> tuple[_Part, PlacedTensor]:
        part = self._homes[name]
        return part, part.tensors[name]

    @staticmethod
    def _bytes(part: _Part, offset: int, n_bytes: int) -> bytearray:
        buffer = bytearray(n_bytes)
        part.read(offset, memoryview(buffer))
        return buffer


def open_gguf(path: Path) -> GgufFile:
    """Map the model at `path` (of a split model: its first part) and check all that its header says.

    HprofError, one sentence, for whatever is wrong with it. Reads the header only, not the weights.
    """
    first = _open_part(path)
    n_parts = first.header.metadata.get(Keys.Split.LLM_KV_SPLIT_COUNT, 1)
    parts = [first] if n_parts in (0, 1) else [first, *_other_parts(first, n_parts)]
    _check_whole(parts)
    return GgufFile(parts)


def _open_part(path: Path) -> _Part:
    try:
        if not path.is_file():
            raise HprofError(f"{path}: {'not a file' if path.exists() else 'no such file'}; give a .gguf model's path.")
        file = path.open("rb", buffering=0)
        n_bytes = os.fstat(file.fileno()).st_size
        if n_bytes < _SMALLEST_FILE:
            raise HprofError(f"{path}: only {n_bytes} bytes long, too short for a GGUF file; download it again.")
        memory = mmap.mmap(file.fileno(), n_bytes, access=mmap.ACCESS_READ)
    except OSError as error:
        raise HprofError(f"{path}: cannot be read ({error.strerror}); check its permissions.") from error
    header = read_header(memory, path)
    return _Part(path, file, _as_tensor(memory), header, place_tensors(header, path, n_bytes))


def _as_tensor(memory: mmap.mmap) -> torch.Tensor:
    """No private writable map, which torch would take without a warning: pinning one would copy the whole file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(memory, dtype=torch.uint8)


def _other_parts(first: _Part, n_parts: Any) -> list[_Part]:
    """Parts 2 to `n_parts` of a model that llama-gguf-split cut up: in the same folder, named alike."""
    match = _PART_NAME.fullmatch(first.path.name)
    if type(n_parts) is not int or not 1 < n_parts <= _MAX_PARTS or not match or int(match["count"]) != n_parts:
        raise HprofError(
            f"{first.path}: it says that it is one of {n_parts!r} parts, so it must be named "
            "NAME-00001-of-COUNT.gguf; give the part as llama-gguf-split named it, beside the others."
        )
    names = [f"{match['stem']}-{i:05}-of-{n_parts:05}.gguf" for i in range(1, n_parts + 1)]
    if first.path.name != names[0]:
        raise HprofError(f"{first.path}: not the first part of the model; give {names[0]}.")
    return [_open_part(first.path.with_name(name)) for name in names[1:]]


def _check_whole(parts: list[_Part]) -> None:
    """Parts in order, no tensor twice, as many as the first part says; at least one."""
    path, n_tensors = parts[0].path, sum(len(part.tensors) for part in parts)
    for i, part in enumerate(parts):
        if len(parts) > 1 and part.header.metadata.get(Keys.Split.LLM_KV_SPLIT_NO) != i:
            raise HprofError(f"{part.path}: its header does not say that it is part {i + 1}; download it again.")
    if len({name for part in parts for name in part.tensors}) != n_tensors:
        raise HprofError(f"{path}: two of its parts hold the same tensor; download all parts again.")
    expected = parts[0].header.metadata.get(Keys.Split.LLM_KV_SPLIT_TENSORS_COUNT, n_tensors)
    if len(parts) > 1 and expected != n_tensors:
        raise HprofError(f"{path}: its parts hold {n_tensors} tensors, not {expected}; download all parts again.")
    if not n_tensors:
        raise HprofError(f"{path}: holds no tensors (a vocabulary only?); give a model with weights.")
