"""The bracket scan finds exactly the objects that a JSON parser finds."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from profiler.importers.kineto.scan import scan

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
