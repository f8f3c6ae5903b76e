"""The bracket scan finds exactly the objects that a JSON parser finds. Chunks are cut at event boundaries, whatever
stands in the events; damage is said, never guessed over.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.errors import HprofError
from profiler.importers.kineto.stream import EventStream, open_source, scan

_TEXT = st.text(alphabet='ab{}[]",:\\ \n', max_size=8)
_VALUE = st.recursive(
    st.none() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)
_OBJECTS = st.lists(st.dictionaries(_TEXT, _VALUE, max_size=3), max_size=5)


@given(_OBJECTS)
def test_every_object_is_found_and_the_end_of_the_array(objects: list[dict[str, object]]) -> None:
    inner = json.dumps(objects)[1:-1].encode()
    found = scan(inner + b'], "after": [{}, "]"]}')
    pieces = [inner[s:e] for s, e in zip(found.starts, found.ends, strict=True)]
    assert [json.loads(piece) for piece in pieces] == objects
    assert found.array_end == len(inner)


@given(_OBJECTS, st.integers(0, 10_000))
def test_a_cut_piece_gives_its_whole_objects(objects: list[dict[str, object]], cut: int) -> None:
    inner = json.dumps(objects)[1:-1].encode()
    piece = inner[: cut % (len(inner) + 1)]
    found = scan(piece)
    whole = [json.loads(piece[s:e]) for s, e in zip(found.starts, found.ends, strict=True)]
    assert whole == objects[: len(whole)]
    assert found.array_end is None


_EVENTS = [
    {"ph": "X", "name": 'odd "},{" name \\', "ts": 5.25, "args": {"dims": [[], [1]], "list": [{"a": 1}, {"b": {}}]}},
    {"ph": "M", "name": "process_name", "args": {"name": "]}"}},
    {"ph": "X", "name": "plain", "ts": 6},
]


def _stream(path: Path, data: bytes, chunk_bytes: int) -> tuple[EventStream, list[Any]]:
    path.write_bytes(data)
    with open_source(path) as source:
        stream = EventStream(source, chunk_bytes)
        return stream, [event for chunk in stream for event in chunk]


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 200, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_any_chunk_size_gives_the_same_events_and_keys(tmp_path: Path, chunk_bytes: int, indent: int | None) -> None:
    trace = {"schemaVersion": 1, "nested": {"traceEvents": [{}]}, "traceEvents": _EVENTS * 5, "traceName": "t"}
    stream, events = _stream(tmp_path / "t", json.dumps(trace, indent=indent).encode(), chunk_bytes)
    assert events == _EVENTS * 5
    assert stream.metadata == {"schemaVersion": 1, "nested": {"traceEvents": [{}]}, "traceName": "t"}
    assert stream.lost is None
    assert not +stream.dropped


def test_a_key_inside_a_string_is_not_taken_for_the_array(tmp_path: Path) -> None:
    data = json.dumps({"note": '"traceEvents": [', "traceEvents": _EVENTS}).encode()
    assert _stream(tmp_path / "t", data, 32)[1] == _EVENTS


@pytest.mark.parametrize("end", [b"]", b"", b",\n"])
def test_a_bare_array_needs_no_closing_bracket(tmp_path: Path, end: bytes) -> None:
    data = b"\xef\xbb\xbf \n" + json.dumps(_EVENTS).encode()[:-1] + end
    stream, events = _stream(tmp_path / "t", data, 16)
    assert events == _EVENTS
    assert stream.lost is None


@given(cut=st.integers(0, 10_000))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_a_truncated_file_keeps_every_whole_event_and_says_so(tmp_path: Path, cut: int) -> None:
    data = json.dumps({"traceEvents": _EVENTS * 3}).encode()
    start = len(b'{"traceEvents": [')
    cut = start + cut % (len(data) - start - 2)
    stream, events = _stream(tmp_path / "t", data[:cut], 50)
    assert events == (_EVENTS * 3)[: len(events)]
    assert len(data[:cut]) - start < len(json.dumps((_EVENTS * 3)[: len(events) + 1])) + 1
    assert stream.lost is not None
    assert "ends inside" in stream.lost


def test_a_truncated_gzip_keeps_what_unpacks(tmp_path: Path) -> None:
    data = gzip.compress(json.dumps({"traceEvents": [{"ph": "X", "n": i * 7919} for i in range(5000)]}).encode())
    stream, events = _stream(tmp_path / "t", data[: len(data) // 2], 4096)
    assert 500 < len(events) < 5000
    assert stream.lost is not None
    assert "gzip" in stream.lost


@pytest.mark.parametrize("checksum", [b"", b"\x00" * 8])
def test_a_gzip_without_its_checksum_loses_no_event_and_says_so(tmp_path: Path, checksum: bytes) -> None:
    data = gzip.compress(json.dumps({"traceEvents": _EVENTS, "a": 1}).encode())[:-8] + checksum
    stream, events = _stream(tmp_path / "t", data, 1 << 20)
    assert events == _EVENTS
    assert stream.metadata == {"a": 1}
    assert stream.lost is not None
    assert "checksum" in stream.lost


def test_events_that_are_not_json_are_dropped_and_counted_and_bare_inf_is_read(tmp_path: Path) -> None:
    good, bad = '{"n": 1}', '{"name": "say "hi" now"}'
    data = f'{{"traceEvents": [{good}, {bad}, {{"bandwidth": inf, "n": 2}}, 5, {good}]}}'.encode()
    stream, events = _stream(tmp_path / "t", data, 8)
    assert events == [{"n": 1}, {"bandwidth": None, "n": 2}, {"n": 1}]
    assert stream.dropped["events that are not valid JSON"] == 1


def test_times_come_as_text_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text('{"traceEvents": [{"ts": 1712345678901234.567, "name": "x \\"ts\\": 1.5"}, {"ts": 3}]}')
    with open_source(path) as source:
        stream = EventStream(source)
        for chunk in stream:
            assert isinstance(chunk[0]["ts"], float)
            stream.text_times = True
            assert [e["ts"] for e in stream.reparsed()] == ["1712345678901234.567", 3]
            assert stream.reparsed()[0]["name"] == 'x "ts": 1.5'


def _unpacks_to(n_bytes: int) -> Iterable[bytes]:
    yield b'{"traceEvents": ['
    for _ in range(n_bytes >> 20):
        yield b" " * (1 << 20)


def test_a_gzip_bomb_is_refused_before_it_unpacks(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.json.gz"
    with gzip.open(bomb, "wb", compresslevel=9) as file:
        file.writelines(_unpacks_to(100 << 20))
    with pytest.raises(HprofError, match="250 times its size"), open_source(bomb) as source:
        list(EventStream(source))


def test_the_absolute_limit_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(json.dumps({"traceEvents": _EVENTS * 100}))
    with pytest.raises(HprofError, match="more than 1,000 bytes"), open_source(path, max_bytes=1000) as source:
        list(EventStream(source, 256))


@pytest.mark.parametrize("data", [b"", b"{}", b'{"traceEvents": 5}', b"nonsense"])
def test_what_is_no_trace_is_one_clear_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(HprofError, match="no readable"):
        _stream(tmp_path / "t", data, 64)


def test_an_array_that_never_closes_an_event_is_empty_and_says_so(tmp_path: Path) -> None:
    stream, events = _stream(tmp_path / "t", b'{"traceEvents": [[' * 40, 64)
    assert events == []
    assert stream.lost is not None


def test_a_file_whose_first_bytes_cannot_be_read_is_one_sentence() -> None:
    if not Path("/proc/self/mem").exists():
        pytest.skip("needs a file that opens and cannot be read: /proc/self/mem")
    with (
        pytest.raises(HprofError, match=r"^/proc/self/mem cannot be read: Input/output error; check the disk\.$"),
        open_source(Path("/proc/self/mem")),
    ):
        pass
