"""Streams the events of a Chrome-format JSON trace in small chunks, so that memory stays bounded.

A chunk is cut where it parses: a comma between two objects at which `[chunk]` is valid JSON is a comma between
two elements of the array, since JSON reads left to right in one way only. So the quick guess (the last `},{`)
needs no proof of its own, and the exact bracket scan runs only where the guess fails.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import orjson

from executor.errors import HprofError
from profiler.importers.kineto.scan import Scan, scan
from profiler.importers.kineto.source import Source

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

    def __init__(self, source: Source, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.metadata: dict[str, Any] = {}
        self.dropped: Counter[str] = Counter()
        self.lost: str | None = None
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
                f"{self._source.path} has damaged JSON, or an event of more than {MAX_OBJECT_BYTES >> 20} MiB, "
                f"at byte {at}; record the trace again."
            )
        self._fill(2 * len(self._buffer))

    def _note_loss(self, rest: bytes) -> None:
        cause = self._source.truncated or "the file ends inside its array of events"
        # the Chrome format lets a bare array go without its closing bracket
        if self._source.truncated or not self.is_bare_array or _bare(rest):
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
