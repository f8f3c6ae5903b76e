"""Reads a GGUF header off hostile bytes, and checks the tensors that it describes.

Why not `gguf.GGUFReader`: it believes every count and length in the file (a made-up one loops for ever or reads
wrong bytes silently) and makes several objects a token, which takes seconds for a large vocabulary. Here each
read is bounded by the file, each loop by a limit, and long arrays are stepped over. Enums and key names are
gguf's.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn

from gguf import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGUF_MAGIC,
    GGMLQuantizationType,
    GGUFValueType,
    Keys,
)

from executor.errors import HprofError
from executor.model import TensorInfo

SUPPORTED_VERSIONS: Final = (2, 3)
MAX_TENSORS: Final = 1 << 17
MAX_FIELDS: Final = 1 << 12
MAX_NAME_BYTES: Final = 1 << 10
MAX_TEXT_BYTES: Final = 1 << 28  # of all names and metadata strings together
MAX_STRINGS: Final = 1 << 23
MAX_DIMS: Final = 4  # ggml's GGML_MAX_DIMS
LISTED_ITEMS: Final = 1 << 12  # longer arrays (vocabularies) are stepped over

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS: Final[dict[int, struct.Struct]] = {
    GGUFValueType[name]: struct.Struct("<" + code)
    for name, code in {
        "UINT8": "B", "INT8": "b", "UINT16": "H", "INT16": "h", "UINT32": "I", "INT32": "i",
        "FLOAT32": "f", "BOOL": "?", "UINT64": "Q", "INT64": "q", "FLOAT64": "d",
    }.items()
}  # fmt: skip
_STRING, _ARRAY = int(GGUFValueType.STRING), int(GGUFValueType.ARRAY)
_SMALLEST_FIELD = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8
_SIZES: Final[dict[str, tuple[int, int]]] = {
    kind.name: sizes for kind, sizes in GGML_QUANT_SIZES.items()
}  # weights and bytes of a block
_MAX_WEIGHTS: Final = 1 << 62
_BLOCK_NAME: Final = re.compile(r"blk\.[0-9]{1,5}\.[^.].*")


@dataclass(frozen=True, slots=True)
class SkippedArray:
    """A metadata array too long to keep, such as a vocabulary: its items' GGUF type and their number."""

    item_type: str
    length: int

    def __len__(self) -> int:
        return self.length


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor as the header describes it, nothing checked but that it is readable.

    `dims` in GGUF's order (columns first); `offset` in bytes from where the data begins.
    """

    name: str
    dims: tuple[int, ...]
    type_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """The header takes `n_bytes`; tensor data begins at the next multiple of `alignment`."""

    version: int
    metadata: dict[str, Any]
    entries: list[TensorEntry]
    alignment: int
    n_bytes: int

    @property
    def data_start(self) -> int:
        """The byte of the file where tensor data begin: the first aligned one behind the header."""
        return -(-self.n_bytes // self.alignment) * self.alignment


def read_header(data: mmap.mmap | bytes, path: Path) -> Header:
    """Parse the header at the start of `data`; HprofError names `path` and what is wrong."""
    cursor = _Cursor(data, path)
    version = _read_version(cursor)
    n_tensors = cursor.count("tensors", MAX_TENSORS, _SMALLEST_TENSOR)
    n_fields = cursor.count("metadata fields", MAX_FIELDS, _SMALLEST_FIELD)
    metadata = _read_metadata(cursor, n_fields)
    entries = [_read_entry(cursor) for _ in range(n_tensors)]
    return Header(version, metadata, entries, _alignment(cursor, metadata), n_bytes=cursor.position)


class _Cursor:
    """Little-endian values in order; every read is checked against the end of the file."""

    def __init__(self, data: mmap.mmap | bytes, path: Path) -> None:
        self.data, self.path, self.position, self.end = data, path, 0, len(data)
        self.text_left = MAX_TEXT_BYTES

    def fail(self, fact: str) -> NoReturn:
        raise HprofError(f"{self.path}: {fact}; download or convert the model again.")

    def take(self, n_bytes: int, what: str) -> int:
        """Step over `n_bytes`; return where they start."""
        start = self.position
        if n_bytes > self.end - start:
            self.fail(f"the file ends at byte {self.end:,}, inside {what} ({n_bytes:,} bytes from byte {start:,})")
        self.position = start + n_bytes
        return start

    def value(self, kind: struct.Struct, what: str) -> Any:
        return kind.unpack_from(self.data, self.take(kind.size, what))[0]

    def count(self, what: str, limit: int, smallest: int) -> int:
        """A number of things, each of which takes `smallest` bytes or more of what is left of the file."""
        number: int = self.value(_U64, f"the number of {what}")
        if number > min(limit, (self.end - self.position) // smallest):
            self.fail(f"it claims {number:,} {what}, more than the file can hold or hprof accepts ({limit:,})")
        return number

    def text(self, what: str, limit: int = MAX_TEXT_BYTES, errors: str = "strict") -> str:
        n_bytes: int = self.value(_U64, f"the length of {what}")
        if n_bytes > min(limit, self.text_left):
            self.fail(f"{what} claims to be {n_bytes:,} bytes long, more than hprof accepts")
        self.text_left -= n_bytes
        start = self.take(n_bytes, what)
        try:
            return self.data[start : start + n_bytes].decode("utf-8", errors)
        except UnicodeDecodeError:
            self.fail(f"{what} at byte {start:,} is not UTF-8")

    def skip_strings(self, number: int, what: str) -> None:
        """Step over `number` strings; a vocabulary has 100,000s, so the loop does nothing else."""
        data, position, last, unpack = self.data, self.position, self.end - 8, _U64.unpack_from
        for _ in range(number):
            if position > last:
                break
            position += 8 + unpack(data, position)[0]
        if position > self.end:
            self.fail(f"the file ends at byte {self.end:,}, inside the strings of {what}")
        self.position = position


def _read_version(cursor: _Cursor) -> int:
    if cursor.value(_U32, "the magic number") != GGUF_MAGIC:
        raise HprofError(f"{cursor.path}: not a GGUF file (it does not begin with 'GGUF'); give a .gguf model.")
    version: int = cursor.value(_U32, "the version")
    if version and version & 0xFFFF == 0:
        raise HprofError(f"{cursor.path}: a big-endian GGUF file; convert it to little-endian (gguf-convert-endian).")
    if version not in SUPPORTED_VERSIONS:
        cursor.fail(f"GGUF version {version} is not one of {', '.join(map(str, SUPPORTED_VERSIONS))}")
    return version


def _read_metadata(cursor: _Cursor, n_fields: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(n_fields):
        key = cursor.text("a metadata key", MAX_NAME_BYTES)
        if key in metadata:
            cursor.fail(f"the metadata key {key!r} appears twice")
        metadata[key] = _read_value(cursor, key)
    return metadata


def _read_value(cursor: _Cursor, key: str) -> Any:
    what = f"the metadata field {key!r}"
    type_id: int = cursor.value(_U32, f"the type of {what}")
    if type_id == _ARRAY:
        return _read_array(cursor, what)
    if type_id == _STRING:
        return cursor.text(what, errors="replace")
    if (scalar := _SCALARS.get(type_id)) is None:
        cursor.fail(f"{what} has the unknown type {type_id}")
    return cursor.value(scalar, what)


def _read_array(cursor: _Cursor, what: str) -> list[Any] | SkippedArray:
    type_id: int = cursor.value(_U32, f"the item type of {what}")
    if type_id == _STRING:
        number = cursor.count(f"strings in {what}", MAX_STRINGS, 8)
        if number <= LISTED_ITEMS:
            return [cursor.text(f"a string of {what}", errors="replace") for _ in range(number)]
        cursor.skip_strings(number, what)
        return SkippedArray("STRING", number)
    if (scalar := _SCALARS.get(type_id)) is None:
        cursor.fail(f"{what} is an array of {'arrays' if type_id == _ARRAY else f'the unknown type {type_id}'}")
    number = cursor.count(f"items in {what}", cursor.end, scalar.size)
    start = cursor.take(number * scalar.size, what)
    if number > LISTED_ITEMS:
        return SkippedArray(GGUFValueType(type_id).name, number)
    items = cursor.data[start : cursor.position]
    return [value for (value,) in scalar.iter_unpack(items)]


def _read_entry(cursor: _Cursor) -> TensorEntry:
    name = cursor.text("a tensor's name", MAX_NAME_BYTES)
    what = f"the entry of tensor {name!r}"
    n_dims: int = cursor.value(_U32, what)
    if not 1 <= n_dims <= MAX_DIMS:
        cursor.fail(f"tensor {name!r} claims {n_dims} dimensions, where 1 to {MAX_DIMS} are possible")
    dims = tuple(cursor.value(_U64, what) for _ in range(n_dims))
    return TensorEntry(name, dims, cursor.value(_U32, what), cursor.value(_U64, what))


def _alignment(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get(Keys.General.ALIGNMENT, GGUF_DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= 1 << 30 or alignment & (alignment - 1):
        cursor.fail(f"{Keys.General.ALIGNMENT} is {alignment!r}, not a power of two")
    return alignment


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
    """All of the header's tensors by name, in the file's order; HprofError at the first that cannot be right.

    A tensor of a type that hprof does not unpack has a quant that is not in QUANTS, and 0 bytes if gguf does not know
    it either.
    """
    placed: dict[str, PlacedTensor] = {}
    for entry in header.entries:
        if entry.name in placed:
            raise _broken(path, f"the tensor {entry.name!r} appears twice")
        placed[entry.name] = _place(entry, header, path, file_bytes)
    _check_overlap(placed, path)
    return placed


def _place(entry: TensorEntry, header: Header, path: Path, file_bytes: int) -> PlacedTensor:
    name, quant, shape = _checked_name(entry, path), _quant_name(entry), _checked_shape(entry, path)
    if entry.offset % header.alignment:
        raise _broken(path, f"tensor {name!r} is at offset {entry.offset:,}, not a multiple of {header.alignment}")
    n_bytes = _n_bytes(name, quant, shape, path) if quant in _SIZES else 0
    tensor = PlacedTensor(TensorInfo(name, quant, shape, n_bytes), header.data_start + entry.offset)
    if tensor.end > file_bytes:
        fact = f"tensor {name!r} ends at byte {tensor.end:,}, but the file has only {file_bytes:,} bytes"
        raise _broken(path, fact)
    return tensor


def _n_bytes(name: str, quant: str, shape: tuple[int, ...], path: Path) -> int:
    block_size, block_bytes = _SIZES[quant]
    if shape[-1] % block_size:
        fact = (
            f"tensor {name!r} has rows of {shape[-1]:,} weights, not a whole number of {quant} blocks of {block_size}"
        )
        raise _broken(path, fact)
    return math.prod(shape) // block_size * block_bytes


def _checked_name(entry: TensorEntry, path: Path) -> str:
    name = entry.name
    if not name.isprintable() or not name:
        raise _broken(path, f"the tensor name {name!r} is empty or not printable")
    if name.split(".")[0] == "blk" and not _BLOCK_NAME.fullmatch(name):
        raise _broken(path, f"the tensor name {name!r} is not of the form blk.NUMBER.NAME")
    return name


def _quant_name(entry: TensorEntry) -> str:
    """GGUF's name of the type, which hprof may not know: whether that matters, the model decides."""
    try:
        return str(GGMLQuantizationType(entry.type_id).name)
    except ValueError:
        return f"type {entry.type_id}"


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
