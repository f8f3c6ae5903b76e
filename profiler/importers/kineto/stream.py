"""Streams the events of a Chrome-format JSON trace in small chunks, plain or gzip, so that memory stays bounded.

A chunk is cut where it parses: a comma between two objects at which `[chunk]` is valid JSON is a comma between
two elements of the array, since JSON reads left to right in one way only. So the quick guess (the last `},{`)
needs no proof of its own, and the exact bracket scan runs only where the guess fails.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from executor.arrays import Int64
from executor.errors import HprofError
from executor.units import format_bytes
from profiler.importers.base import GZIP_MAGIC

MAX_BYTES: Final = 64 * 2**30  # of JSON; a trace of 300 million events
MAX_RATIO: Final = 250  # real traces compress 10 to 60 times
_RATIO_FROM_BYTES: Final = 64 * 2**20  # small traces of few names may compress better; they do no harm


class JsonSource:
    """Reads blocks of JSON bytes; `truncated` says why the end is missing, once it was found missing."""

    def __init__(self, path: Path, raw: BinaryIO, *, max_bytes: int, max_ratio: int) -> None:
        self.path = path
        self.n_read = 0
        self.truncated: str | None = None
        self._raw = raw
        self._limits = (max_bytes, max_ratio)
        self._compressed = raw.read(2) == GZIP_MAGIC
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
def open_source(path: Path, *, max_bytes: int = MAX_BYTES, max_ratio: int = MAX_RATIO) -> Iterator[JsonSource]:
    """The trace at `path`, plain or gzip by content."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise HprofError(f"{path} cannot be read: {error.strerror}; check the path and its permissions.") from error
    with raw:
        try:
            source = JsonSource(path, raw, max_bytes=max_bytes, max_ratio=max_ratio)
        except OSError as error:
            raise HprofError(f"{path} cannot be read: {error.strerror}; check the disk.") from error
        yield source


_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_STEP = np.zeros(256, dtype=np.int8)
_STEP[[ord("{"), ord("[")]] = 1
_STEP[[ord("}"), ord("]")]] = -1


@dataclass(frozen=True, slots=True)
class Scan:
    """The whole objects in a piece of an array, and the array's closing bracket when it is there."""

    starts: Int64  # offset of each whole object's "{"
    ends: Int64  # offset just after its "}"
    array_end: int | None  # offset of the "]" that closes the array


def scan(piece: bytes) -> Scan:
    """The whole objects of `piece`, which begins between two elements of an array."""
    text = np.frombuffer(piece, dtype=np.uint8)
    brackets = np.flatnonzero(_STEP[text])
    quotes = _string_quotes(text)
    outside = np.searchsorted(quotes, brackets) % 2 == 0
    brackets = brackets[outside]
    depth = np.cumsum(_STEP[text[brackets]], dtype=np.int64)
    closing = np.flatnonzero(depth < 0)
    array_end = int(brackets[closing[0]]) if len(closing) else None
    if array_end is not None:
        brackets, depth = brackets[: closing[0]], depth[: closing[0]]
    opens = (text[brackets] == ord("{")) & (depth == 1)
    closes = (text[brackets] == ord("}")) & (depth == 0)
    ends = brackets[closes] + 1
    return Scan(brackets[opens][: len(ends)], ends, array_end)


def _string_quotes(text: NDArray[np.uint8]) -> Int64:
    """Offsets of the quotes that open or close a string: those not escaped by an odd run of backslashes."""
    quotes = np.flatnonzero(text == _QUOTE)
    backslash = text == _BACKSLASH
    if not backslash.any():
        return quotes
    other = np.where(backslash, -1, np.arange(len(text)))
    last_other = np.maximum.accumulate(other)
    before = np.where(quotes > 0, last_other[quotes - 1], quotes - 1)
    run = quotes - 1 - before
    unescaped: Int64 = quotes[run % 2 == 0]
    return unescaped


CHUNK_BYTES: Final = 1 << 20  # the objects of one chunk stay in the processor's cache: 2 x faster than 8 MiB
MAX_OBJECT_BYTES: Final = 64 << 20
MAX_HEAD_BYTES: Final = 64 << 20
_GUESS_WINDOW: Final = 64 << 10
_MAX_KEY_TRIES: Final = 16
_BETWEEN: Final = re.compile(rb"\}\s*,\s*\{")
_EVENTS_KEY: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_BLANK: Final = b" \t\r\n"
# old writers print a bandwidth of x/0 as a bare inf or nan, which is no JSON
_BARE_NUMBER: Final = re.compile(rb":\s*-?(?:inf|nan|Infinity|NaN)\b")
_FLOAT_TIME: Final = re.compile(rb'"ts"\s*:\s*(-?[0-9]+\.[-+.0-9eE]+)')
NO_EVENT: Final = "array entries that are no events"
Event = dict[str, Any]


class EventStream:
    """Iterates over lists of events; at the end `metadata` has the file's other keys, `lost` what was missing.

    `text_times` makes `ts` come as decimal text instead of a float; `reparsed()` gives the last chunk so.
    """

    def __init__(self, source: JsonSource, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.metadata: dict[str, Any] = {}
        self.dropped: Counter[str] = Counter()
        self.lost: str | None = None
        self.lacks_events = False  # whether events are among what was lost
        self.is_bare_array = False
        self.text_times = False
        self._source = source
        self._chunk_bytes = chunk_bytes
        self._buffer = b""
        self._chunk = b""
        self._eof = False

    def __iter__(self) -> Iterator[list[Event]]:
        self._skip_head()
        finished = False
        while not finished:
            self._fill(self._chunk_bytes)
            events, finished = self._next_chunk()
            if events:
                yield events

    def reparsed(self) -> list[Event]:
        """The chunk that was yielded last, parsed again under the present `text_times`."""
        return [event for event in self._parse(self._chunk) if type(event) is dict]

    def _fill(self, n_bytes: int) -> None:
        blocks, size = [self._buffer], len(self._buffer)
        while size < n_bytes and not self._eof:
            block = self._source.read(n_bytes - size)
            self._eof = not block
            blocks.append(block)
            size += len(block)
        self._buffer = b"".join(blocks)

    def _skip_head(self) -> None:
        """Leave the buffer just inside the array of events."""
        self._fill(self._chunk_bytes)
        text = self._buffer.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANK)
        if text.startswith(b"["):
            self._buffer, self.is_bare_array = text[1:], True
            return
        while not self._head_found():
            if self._eof or len(self._buffer) > MAX_HEAD_BYTES:
                raise HprofError(f'{self._source.path} has no readable "traceEvents"; give a torch.profiler trace.')
            self._fill(2 * len(self._buffer))

    def _head_found(self) -> bool:
        for match in islice(_EVENTS_KEY.finditer(self._buffer), _MAX_KEY_TRIES):
            head = _loads(self._buffer[: match.end()].removeprefix(b"\xef\xbb\xbf") + b"]}")
            if isinstance(head, dict):  # it parses, so the key is one of the outermost object's
                self._add_metadata(head)
                self._buffer = self._buffer[match.end() :]
                return True
        return False

    def _next_chunk(self) -> tuple[list[Event], bool]:
        """The next whole events (may be none), and whether they are the last."""
        if not self._eof and (events := self._guess()) is not None:
            return events, False
        found = scan(self._buffer)
        if found.array_end is not None:
            events = self._take(found.array_end, found)
            self._read_tail()
            return events, True
        whole = int(found.ends[-1]) if len(found.ends) else 0
        if self._eof:
            self._note_loss(self._buffer[whole:])
            return self._take(whole, found), True
        if not whole:
            self._grow()
        return self._take(whole, found), False

    def _guess(self) -> list[Event] | None:
        found = list(_BETWEEN.finditer(self._buffer, max(0, len(self._buffer) - _GUESS_WINDOW)))
        if not found:
            return None
        cut = found[-1].start() + 1
        chunk = _bare(self._buffer[:cut])
        events = self._parse(chunk)
        if not isinstance(events, list):
            return None
        self._chunk, self._buffer = chunk, self._buffer[cut:]
        return self._only_objects(events)

    def _take(self, n_bytes: int, found: Scan) -> list[Event]:
        """Remove the first `n_bytes` of the buffer, which hold the objects in `found`, and parse them."""
        piece, self._buffer = self._buffer[:n_bytes], self._buffer[n_bytes:]
        self._chunk = _bare(piece)
        events = self._parse(self._chunk)
        if isinstance(events, list):
            return self._only_objects(events)
        return self._parse_each(piece, found)

    def _parse(self, chunk: bytes) -> Any:
        # the key cannot be part of a string's text: there its quotes would be escaped
        text = _FLOAT_TIME.sub(rb'"ts": "\1"', chunk) if self.text_times else chunk
        return _loads(b"[" + text + b"]")

    def _parse_each(self, piece: bytes, found: Scan) -> list[Event]:
        """One by one, leaving out the events that are no JSON."""
        parsed = list(self._each(piece, found))
        self.dropped["events that are not valid JSON"] += sum(event is None for _, event in parsed)
        good = [(text, event) for text, event in parsed if event is not None]
        self._chunk = b",".join(text for text, _ in good)
        return [event for _, event in good]

    def _each(self, piece: bytes, found: Scan) -> Iterator[tuple[bytes, Event | None]]:
        for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True):
            text = _BARE_NUMBER.sub(b": null", piece[start:end])
            parsed = self._parse(text)
            yield text, parsed[0] if parsed else None

    def _only_objects(self, events: list[Any]) -> list[Event]:
        objects = [event for event in events if type(event) is dict]
        if len(objects) < len(events):
            self.dropped[NO_EVENT] += len(events) - len(objects)
        return objects

    def _grow(self) -> None:
        if len(self._buffer) > MAX_OBJECT_BYTES:
            at = self._source.n_read - len(self._buffer)
            raise HprofError(
                f"{self._source.path} has damaged JSON, or an event of more than {format_bytes(MAX_OBJECT_BYTES)}, "
                f"at byte {at}; record the trace again."
            )
        self._fill(2 * len(self._buffer))

    def _note_loss(self, rest: bytes) -> None:
        cause = self._source.truncated or "the file ends inside its array of events"
        # the Chrome format lets a bare array go without its closing bracket
        if self._source.truncated or not self.is_bare_array or _bare(rest):
            self.lacks_events = True
            self.lost = f"{cause}: whole events before that point were kept, the last {len(rest)} bytes were not"

    def _read_tail(self) -> None:
        self._fill(MAX_HEAD_BYTES)
        closing, tail = self._buffer[:1], self._buffer[1:].lstrip(_BLANK).removeprefix(b",").rstrip(_BLANK)
        self._buffer = b""
        keys = _loads(b"{" + tail) if tail else {}
        if isinstance(keys, dict) and closing == b"]":
            self._add_metadata(keys)
            if self._source.truncated:  # a checksum that is wrong: any digit may be another
                self.lost = f"{self._source.truncated}: every event was read, but none is vouched for by its checksum"
        else:
            at = self._source.n_read - len(tail)
            self.lost = f"what follows the array of events (byte {at}) is damaged and was not read"

    def _add_metadata(self, keys: Event) -> None:
        self.metadata |= {key: value for key, value in keys.items() if key != "traceEvents"}


def _bare(piece: bytes) -> bytes:
    """Without the comma and blanks that stand between two chunks."""
    return piece.lstrip(_BLANK).removeprefix(b",").rstrip(_BLANK)


def _loads(text: bytes) -> Any:
    """The parsed value, or None for what is not JSON (orjson bounds the nesting)."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
