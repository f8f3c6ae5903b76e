"""Reads a spool file of `hprof record`: a header, then chunks of 64-byte records and of strings (docs/recording.md).

The file may be cut anywhere, as the process that wrote it may have been killed, and may be a stranger's: chunks are
read up to the first that is not whole, sizes are checked against the file, and memory is bounded by the limits below.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from executor.arrays import Int64
from executor.errors import HprofError
from executor.units import format_bytes

MAGIC: Final = b"hprofspl"
FORMAT_VERSION: Final = 1
SPOOL_ENDING: Final = ".hspool"
NO_ID: Final = 0xFFFFFFFF  # no device, context or stream
MAX_BYTES: Final = 8 << 30
MAX_TEXT_CHARS: Final = 1024
_MAX_CHUNKS: Final = 4_000_000
_MAX_CHUNK_BYTES: Final = 64 << 20
_MAX_TEXTS: Final = 1 << 20  # ids count from 1, and the library stops there

_HEADER: Final = struct.Struct("<8s6I4Q")
HEADER_BYTES: Final = _HEADER.size
_CHUNK: Final = struct.Struct("<4I")
_TEXT: Final = struct.Struct("<2I")
_CHUNK_MAGIC: Final = 0x316B6863
_CHUNK_RECORDS: Final = 1024  # as many as the library gathers
_RECORDS: Final = 1
_STRINGS: Final = 2


class RecordType(IntEnum):
    """What a record is; which of its fields mean what is the table in docs/recording.md."""

    KERNEL = 1
    COPY = 2
    PEER_COPY = 3
    MEMSET = 4
    GRAPH = 5
    SYNC = 6
    CALL = 7
    RANGE_PUSH = 8
    RANGE_POP = 9
    RANGE_START = 10
    RANGE_END = 11
    MARK = 12
    MEMORY = 13
    DEVICE = 14
    CONTEXT = 15
    STREAM = 16
    CLOCK = 17
    LOST = 18
    STATE = 19
    FACT = 20
    GRAPH_NODES = 21
    END = 22
    DOMAIN = 23


RECORD: Final = np.dtype(
    [
        *((name, "u1") for name in ("type", "kind", "src_kind", "dst_kind")),
        ("name", "<u4"),
        *((name, "<u8") for name in ("start", "end", "bytes", "id")),
        *((name, "<u4") for name in ("device", "context", "stream", "correlation", "thread", "extra")),
    ]
)
Records = npt.NDArray[Any]  # of RECORD


class _Chunk(NamedTuple):
    """Where the payload lies, and how many records or texts it holds."""

    kind: int
    at: int
    n_bytes: int
    n_items: int


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """What one process wrote."""

    name: str  # of the file
    process: int
    parent: int
    realtime_ns: int  # CLOCK_REALTIME when it was opened
    records: Records  # by their type, those of one type in the order of the file
    number: npt.NDArray[np.uint32]  # of each record in the file
    texts: dict[int, str]
    n_cut_bytes: int  # after the last whole chunk
    n_before: Int64  # (257,): how many records are of a lower type

    def numbered(self, *types: RecordType) -> tuple[Records, npt.NDArray[np.uint32]]:
        """The records of these types and their numbers, in the order of the file. Of one type they take no memory."""
        stretches = [slice(self.n_before[one], self.n_before[one + 1]) for one in types]
        parts = [stretch for stretch in stretches if stretch.start < stretch.stop] or stretches[:1]
        if len(parts) == 1:
            return self.records[parts[0]], self.number[parts[0]]
        numbers = np.concatenate([self.number[part] for part in parts])
        order = np.argsort(numbers)
        return np.concatenate([self.records[part] for part in parts])[order], numbers[order]

    def of_type(self, *types: RecordType) -> Records:
        """The records of these types, in the order of the file."""
        return self.numbered(*types)[0]

    def facts(self) -> dict[str, list[str]]:
        """What the process said of itself, by key."""
        said: dict[str, list[str]] = {}
        for record in self.of_type(RecordType.FACT)[:_MAX_FACTS]:
            key, value = self.texts.get(int(record["name"])), self.texts.get(int(record["extra"]))
            if key is not None and value is not None:
                said.setdefault(key, []).append(value)
        return said

    @property
    def is_ended(self) -> bool:
        """Whether the library wrote its last record: else the process was killed, or left by `_exit`."""
        return len(self.of_type(RecordType.END)) > 0


_MAX_FACTS: Final = 1000


def read_spool(path: Path) -> SpoolFile:
    """One file. Raises HprofError for what is no spool, or one of a newer hprof, or too large."""
    if not path.is_file():  # of a folder, where a pipe might wait for ever
        raise HprofError(f"{path} is not a regular file; give a spool that hprof record wrote.")
    try:
        with path.open("rb") as file:
            return _read(path, file)
    except OSError as error:
        raise HprofError(f"{path} cannot be read ({error.strerror or error}); check its permissions.") from error


def _read(path: Path, file: BufferedReader) -> SpoolFile:
    head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(MAGIC):
        raise HprofError(f"{path} is no spool of hprof record; give a file that ends in {SPOOL_ENDING}.")
    _, version, record_bytes, header_bytes, process, parent, _, realtime_ns, *_ = _HEADER.unpack(head)
    if (version, record_bytes, header_bytes) != (FORMAT_VERSION, RECORD.itemsize, _HEADER.size):
        raise HprofError(
            f"{path} is a spool of format {version}, and this hprof reads {FORMAT_VERSION}; import it with the hprof "
            "that recorded it."
        )
    size = file.seek(0, 2)
    if size > MAX_BYTES:
        raise HprofError(
            f"{path} is larger than {format_bytes(MAX_BYTES)}, more than hprof imports; record with a lower "
            "--max-bytes."
        )
    chunks = list(_chunks(file, size))
    end = chunks[-1].at + chunks[-1].n_bytes if chunks else _HEADER.size
    texts = dict[int, str]()
    for chunk in chunks:
        if chunk.kind == _STRINGS:
            file.seek(chunk.at)
            _read_texts(file.read(chunk.n_bytes), chunk.n_items, texts)
    try:
        records, number, n_before = _read_records(file, [chunk for chunk in chunks if chunk.kind == _RECORDS])
    except ValueError as error:  # also of numpy, where a record is cut
        raise HprofError(f"{path} changed while it was read; import it when its program has ended.") from error
    return SpoolFile(path.name, process, parent, realtime_ns, records, number, texts, size - end, n_before)


def _read_records(file: BufferedReader, chunks: list[_Chunk]) -> tuple[Records, npt.NDArray[np.uint32], Int64]:
    """The records by type, their numbers in the file, and how many are of a lower type than each.

    The file is read twice, so that they are put in place at once: sorting them would take their memory again.
    """
    n_of_type = np.zeros(257, np.int64)
    for part in _parts(file, chunks):
        n_of_type[1:] += np.bincount(part["type"], minlength=256)
    n_before = np.cumsum(n_of_type)
    records, number = np.empty(n_before[-1], RECORD), np.empty(n_before[-1], np.uint32)
    filled, n_read = n_before.copy(), 0
    for part in _parts(file, chunks):
        for one in np.unique(part["type"]).tolist():
            rows = np.flatnonzero(part["type"] == one)
            place = slice(filled[one], filled[one] + len(rows))
            if place.stop > n_before[one + 1]:
                raise ValueError("the file has other records")
            records[place], number[place] = part[rows], rows + n_read
            filled[one] = place.stop
        n_read += len(part)
    return records, number, n_before


def _parts(file: BufferedReader, chunks: list[_Chunk]) -> Iterator[Records]:
    for chunk in chunks:
        file.seek(chunk.at)
        part = np.frombuffer(file.read(chunk.n_bytes), RECORD)
        if len(part) != chunk.n_items:
            raise ValueError("the file became shorter")
        yield part


def _chunks(file: BufferedReader, size: int) -> Iterator[_Chunk]:
    """Each whole chunk, up to the first that is none."""
    at = _HEADER.size
    for _ in range(_MAX_CHUNKS):
        file.seek(at)
        head = file.read(_CHUNK.size)
        if len(head) < _CHUNK.size:
            return
        magic, kind, n_bytes, count = _CHUNK.unpack(head)
        is_sound = magic == _CHUNK_MAGIC and kind in (_RECORDS, _STRINGS) and n_bytes <= _MAX_CHUNK_BYTES
        if not is_sound or at + _CHUNK.size + n_bytes > size:
            return
        if kind == _RECORDS and n_bytes != count * RECORD.itemsize:
            return
        yield _Chunk(kind, at + _CHUNK.size, n_bytes, count)
        at += _CHUNK.size + n_bytes


def _read_texts(payload: bytes, count: int, texts: dict[int, str]) -> None:
    """The strings of a chunk; the first text of an id stays."""
    at = 0
    for _ in range(count):
        if at + _TEXT.size > len(payload):
            return
        number, length = _TEXT.unpack_from(payload, at)
        at += _TEXT.size
        if at + length > len(payload):
            return
        if 0 < number < _MAX_TEXTS:
            text = payload[at : at + min(length, 4 * MAX_TEXT_CHARS)].decode("utf-8", errors="replace")
            texts.setdefault(number, text[:MAX_TEXT_CHARS])
        at += length + (-length) % 8


def spool_bytes(process: int, records: Records, texts: dict[int, str], *, realtime_ns: int = 0) -> bytes:
    """A spool as the library writes it: for samples and tests."""
    header = _HEADER.pack(MAGIC, FORMAT_VERSION, RECORD.itemsize, _HEADER.size, process, 0, 0, realtime_ns, 0, 0, 0)
    encoded = b""
    for number, text in texts.items():
        data = text.encode()
        encoded += _TEXT.pack(number, len(data)) + data + bytes((-len(data)) % 8)
    chunks = [header, _CHUNK.pack(_CHUNK_MAGIC, _STRINGS, len(encoded), len(texts)), encoded]
    for first in range(0, len(records), _CHUNK_RECORDS):
        part = records[first : first + _CHUNK_RECORDS]
        chunks += [_CHUNK.pack(_CHUNK_MAGIC, _RECORDS, part.nbytes, len(part)), part.tobytes()]
    return b"".join(chunks)
