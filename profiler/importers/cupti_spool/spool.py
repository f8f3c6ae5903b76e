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
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from executor.errors import HprofError
from executor.units import format_bytes
from profiler.arithmetic.intervals import Int64

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


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """What one process wrote."""

    name: str  # of the file
    process: int
    parent: int
    realtime_ns: int  # CLOCK_REALTIME when it was opened
    records: Records
    texts: dict[int, str]
    n_cut_bytes: int  # after the last whole chunk
    by_type: Int64  # the rows of `records` by their type, those of one type in the order of the file
    n_before: Int64  # (257,): how many of them are of a lower type

    def rows_of(self, *types: RecordType) -> Int64:
        """Where the records of these types are, in the order of the file."""
        parts = [self.by_type[self.n_before[number] : self.n_before[number + 1]] for number in types]
        return parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))

    def of_type(self, *types: RecordType) -> Records:
        """The records of these types, in the order of the file."""
        found: Records = self.records[self.rows_of(*types)]
        return found

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
    n_records = sum(count for kind, _, _, count in chunks if kind == _RECORDS)
    records, texts, at = np.empty(n_records, RECORD), dict[int, str](), 0
    for kind, offset, n_bytes, count in chunks:
        file.seek(offset)
        if kind == _RECORDS:
            if file.readinto(records[at : at + count].view("u1").data) != n_bytes:
                raise HprofError(f"{path} became shorter while it was read; import it when its program has ended.")
            at += count
        else:
            _read_texts(file.read(n_bytes), count, texts)
    end = chunks[-1][1] + chunks[-1][2] if chunks else _HEADER.size
    types = records["type"].copy()
    by_type, n_before = np.argsort(types, kind="stable"), np.searchsorted(np.sort(types), np.arange(257))
    return SpoolFile(path.name, process, parent, realtime_ns, records, texts, size - end, by_type, n_before)


def _chunks(file: BufferedReader, size: int) -> Iterator[tuple[int, int, int, int]]:
    """(kind, offset of the payload, its bytes, count) of each whole chunk, up to the first that is none."""
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
        yield kind, at + _CHUNK.size, n_bytes, count
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
