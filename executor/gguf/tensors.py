"""Turns a GGUF header's tensor entries into checked tensors: known type, whole blocks, inside the file, no overlap."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from gguf import GGMLQuantizationType

from executor.errors import HprofError
from executor.gguf.header import Header, TensorEntry
from executor.model import TensorInfo
from executor.quants import QUANTS, tensor_bytes

_MAX_WEIGHTS: Final = 1 << 62
_BLOCK_NAME: Final = re.compile(r"blk\.[0-9]{1,5}\.[^.].*")


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor and where its bytes are in its file."""

    info: TensorInfo
    file_offset: int

    @property
    def end(self) -> int:
        """The byte of the file behind the tensor."""
        return self.file_offset + self.info.n_bytes


def place_tensors(header: Header, path: Path, file_bytes: int) -> dict[str, PlacedTensor]:
    """All of the header's tensors by name, in the file's order; HprofError at the first that cannot be right."""
    placed: dict[str, PlacedTensor] = {}
    for entry in header.entries:
        if entry.name in placed:
            raise _broken(path, f"the tensor {entry.name!r} appears twice")
        placed[entry.name] = _place(entry, header, path, file_bytes)
    _check_overlap(placed, path)
    return placed


def _place(entry: TensorEntry, header: Header, path: Path, file_bytes: int) -> PlacedTensor:
    name, quant, shape = _checked_name(entry, path), _known_quant(entry, path), _checked_shape(entry, path)
    if shape[-1] % (block_size := QUANTS[quant].block_size):
        fact = (
            f"tensor {name!r} has rows of {shape[-1]:,} weights, not a whole number of {quant} blocks of {block_size}"
        )
        raise _broken(path, fact)
    if entry.offset % header.alignment:
        raise _broken(path, f"tensor {name!r} is at offset {entry.offset:,}, not a multiple of {header.alignment}")
    info = TensorInfo(name, quant, shape, tensor_bytes(quant, shape))
    tensor = PlacedTensor(info, header.data_start + entry.offset)
    if tensor.end > file_bytes:
        fact = f"tensor {name!r} ends at byte {tensor.end:,}, but the file has only {file_bytes:,} bytes"
        raise _broken(path, fact)
    return tensor


def _checked_name(entry: TensorEntry, path: Path) -> str:
    name = entry.name
    if not name.isprintable() or not name:
        raise _broken(path, f"the tensor name {name!r} is empty or not printable")
    if name.split(".")[0] == "blk" and not _BLOCK_NAME.fullmatch(name):
        raise _broken(path, f"the tensor name {name!r} is not of the form blk.NUMBER.NAME")
    return name


def _known_quant(entry: TensorEntry, path: Path) -> str:
    try:
        quant = str(GGMLQuantizationType(entry.type_id).name)
    except ValueError:
        quant = f"type {entry.type_id}"
    if quant not in QUANTS:
        raise HprofError(
            f"{path}: tensor {entry.name!r} is stored as {quant}, which hprof does not know; "
            f"convert the model to one of {', '.join(QUANTS)}."
        )
    return quant


def _checked_shape(entry: TensorEntry, path: Path) -> tuple[int, ...]:
    """Python's integers do not overflow, so a product of lying sizes is seen as what it is."""
    shape = entry.dims[::-1]
    if not 0 < math.prod(shape) <= _MAX_WEIGHTS:
        raise _broken(path, f"tensor {entry.name!r} claims the impossible shape {shape}")
    return shape


def _check_overlap(placed: Mapping[str, PlacedTensor], path: Path) -> None:
    for before, after in pairwise(sorted(placed.values(), key=lambda tensor: tensor.file_offset)):
        if after.file_offset < before.end:
            raise _broken(path, f"the tensors {before.info.name!r} and {after.info.name!r} overlap")


def _broken(path: Path, fact: str) -> HprofError:
    return HprofError(f"{path}: {fact}; download or convert the model again.")
