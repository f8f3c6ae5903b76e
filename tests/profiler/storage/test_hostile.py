"""Manifests, parquet parts and addresses of strangers, damaged at random: read, or refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from executor.errors import HprofError
from profiler.capture import Capture
from profiler.manifest import Manifest
from profiler.schema import TABLES
from profiler.storage import address
from tests.profiler import makers
from tests.support import one_sentence

Read = TypeVar("Read")
_JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_KEYS = st.sampled_from(
    ["schema", "source", "state", "arms", "rows", "dropped", "warnings", "machine", "model", "extra", "argv", "plan"]
)
_FLIPS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=8)
_BOUNDED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@cache
def part_bytes() -> bytes:
    """A part of `passes` with some rows."""
    rows = pa.table({"pass_id": pa.array(range(50), pa.int32()), "arm": pa.array(["off", "on"] * 25)})
    out = pa.BufferOutputStream()
    pq.write_table(rows, out)
    return bytes(out.getvalue())


def read_or_refused(read: Callable[[], Read]) -> tuple[Read | None, str]:
    """What was read, or nothing and the sentence that refuses it."""
    try:
        return read(), ""
    except HprofError as error:
        return None, one_sentence(error)


@given(changes=st.dictionaries(_KEYS, _JUNK, max_size=4))
@example(changes={"schema": True})
@example(changes={"arms": [[]]})
@example(changes={"rows": {"events": -1}})
@example(changes={"extra": {"schema": 9}})
@_BOUNDED
def test_any_value_of_any_key_of_a_manifest(changes: dict[str, object]) -> None:
    data = json.dumps({"schema": 1} | changes).encode()
    manifest, refusal = read_or_refused(lambda: Manifest.from_json(data, "traces/a/manifest.json"))
    assert manifest is not None or refusal.startswith("traces/a/manifest.json")
    assert manifest is None or Manifest.from_json(manifest.to_json()) == manifest


@given(data=st.binary(max_size=200))
@example(data=b'{"schema": 1, "warnings": ["\\ud800"]}')
@example(data=b'{"schema": 1e400}')
@_BOUNDED
def test_any_bytes_as_a_manifest(data: bytes) -> None:
    with pytest.raises(HprofError) as caught:
        Manifest.from_json(data, "traces/a/manifest.json")
    assert one_sentence(caught.value).startswith("traces/a/manifest.json")


@given(flips=_FLIPS, cut=st.none() | st.floats(0, 1))
@example(flips=[(0.0, 255)], cut=None)  # the magic
@example(flips=[(0.999, 255)], cut=None)
@example(flips=[(0.5, 1)], cut=0.0)
@_BOUNDED
def test_damaged_parts(tmp_path: Path, flips: list[tuple[float, int]], cut: float | None) -> None:
    path = tmp_path / "c"
    if not path.exists():
        makers.empty(path)
    raw = bytearray(part_bytes())
    for place, change in flips:
        raw[int(place * len(raw))] ^= change
    (path / "passes").mkdir(exist_ok=True)
    (path / "passes" / "all-000000.parquet").write_bytes(raw if cut is None else raw[: int(cut * len(raw))])
    table, refusal = read_or_refused(lambda: Capture.open(path).table("passes"))
    assert table is not None or str(path) in refusal
    assert table is None or table.schema.equals(TABLES["passes"])


@given(scheme=st.text(max_size=8), rest=st.text(max_size=20))
@example(scheme="zip::file", rest="x.zip")
@example(scheme="FILE", rest="/etc/passwd")
@example(scheme="file", rest="::zip://x")
@example(scheme="", rest="//host")
@_BOUNDED
def test_any_address_of_another_scheme_is_refused(scheme: str, rest: str) -> None:
    url = f"{scheme}://{rest}"
    if scheme.partition("://")[0] in (*address.SCHEMES, "memory", "needs-credentials") and "::" not in url:
        return  # these are opened
    with pytest.raises(HprofError, match="no way to read such an address"):
        address.opened(url)
