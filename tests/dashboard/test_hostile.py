"""Hostile captures: nothing of them is executed, nothing outside the root is read, and the page goes on working."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dashboard.trace_root import TraceRoot, find_capture
from executor.errors import HprofError
from profiler.manifest import ManifestArm
from profiler.storage.writer import PassKey, new_capture
from tests.dashboard.pages import PAGES, open_page, said, texts, turn_to

# Not behind a backslash: HTML, an image, a link, a formula, a colour.
_LIVE = re.compile(r"(?<!\\)(<img|!\[x|\[go|\$\$|:red\[y)")
MARKUP = "<img src=x onerror=alert(1)> ![x](http://evil.example/x.png) [go](javascript:alert(1)) $$x$$ :red[y]"


def hostile(path: Path, name: str = MARKUP) -> None:
    """Markup wherever a capture can hold text."""
    writer = new_capture(
        path,
        arms=[ManifestArm(name, name, name, {"flag": name}, [name]), ManifestArm(f"{name}2", name, name)],
        model={"name": name, "notes": [name]},
        machine={"cpu": name, "gpus": [{"name": name}]},
        placement={"spelled": name, "path": "../../etc/passwd"},
        warnings=[name],
        cannot_say=[name],
        argv=[name],
    )
    rows: dict[str, Any] = {
        "pass_id": [0, 0],
        "kind": ["h2d", "compute"],
        "name": [name, name],
        "tensor": [name, None],
        "stream": [name, name],
        "device": [0, 0],
        "layer": [0, 0],
        "ubatch": [0, 0],
        "phase": ["prefill", "prefill"],
        "t_start": [0, 500],
        "t_end": [1000, 1500],
        "bytes": [10, None],
    }
    for pass_id, arm in enumerate([name, f"{name}2"]):
        part = f"pass-{pass_id:06d}"
        writer.write_part("events", rows | {"pass_id": [pass_id] * 2}, part)
        spans = {
            "pass_id": [pass_id],
            "ubatch": [0],
            "phase": ["prefill"],
            "policy": [name],
            "t_start": [0],
            "t_end": [1500],
        }
        writer.write_part("ubatches", spans, part)
        key = PassKey(arm, 64, 0, 64, 1, 0, pass_id, 0)
        writer.add_pass_row(pass_id, key, t_start=0, t_end=1500, ttft_ns=1500, prefill_ns=1500)
    writer.finish()


def test_markup_in_names_is_shown_as_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hostile(tmp_path / "bad")
    app = open_page(monkeypatch, tmp_path, "overview", capture="bad")
    for page in PAGES:
        turn_to(app, page)
        assert not app.error
        for text in texts(app):
            assert not _LIVE.search(text), f"{page} passes markup on: {text}"
        assert all("<img" not in chart.proto.spec for chart in app.get("plotly_chart"))


@pytest.mark.parametrize(
    "manifest",
    [b"", b"{", b"[]", b'{"schema": 99}', b'{"schema": 1, "arms": [{"name": 3}]}', b'{"schema": 1, "warnings": 5}'],
)
def test_unreadable_manifests_are_named_and_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, manifest: bytes
) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "manifest.json").write_bytes(manifest)
    hostile(tmp_path / "good", "plain")
    app = open_page(monkeypatch, tmp_path, "overview")
    assert "bad" in app.sidebar.warning[0].value
    assert app.query_params["capture"] == "good"


def test_a_name_that_is_no_utf8_hides_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path / os.fsdecode(b"r\xff")
    hostile(root / "good", "plain")
    hostile(root / os.fsdecode(b"caf\xe9"), "plain")
    for name in ("good", "caf?"):
        app = open_page(monkeypatch, root, "overview", capture=name)
        for page in PAGES:
            turn_to(app, page)
            assert not app.error, page
            assert app.query_params["capture"] == [name] or app.query_params["capture"] == name


def test_a_part_that_leads_out_of_the_capture_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hostile(tmp_path / "root" / "bad", "plain")
    secret = tmp_path / "secret.parquet"
    part = next((tmp_path / "root" / "bad" / "passes").glob("*.parquet"))
    part.rename(secret)
    part.symlink_to(secret)
    app = open_page(monkeypatch, tmp_path / "root", "overview", capture="bad")
    assert "leads out" in said(app)


def test_a_row_group_that_claims_too_much_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Five million rows of one value take a few hundred bytes on disk."""
    hostile(tmp_path / "bad", "plain")
    part = next((tmp_path / "bad" / "events").glob("*.parquet"))
    rows = pa.table({"pass_id": pa.array(np.zeros(5_000_000, np.int32))})
    pq.write_table(rows, part, row_group_size=5_000_000)
    for page in ("overview", "timeline"):
        app = open_page(monkeypatch, tmp_path, page, capture="bad")
        assert "row group" in app.error[0].value


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_damaged_parts_are_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: bytes) -> None:
    hostile(tmp_path / "bad", "plain")
    next((tmp_path / "bad" / "events").glob("*.parquet")).write_bytes(damage)
    app = open_page(monkeypatch, tmp_path, "timeline", capture="bad")
    assert "not a readable parquet part" in app.error[0].value.replace("\\", "")


def test_a_manifest_cannot_point_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Paths in a manifest are text: what is shown comes from the capture's own folder."""
    hostile(tmp_path / "bad", "plain")
    path = tmp_path / "bad" / "manifest.json"
    manifest = orjson.loads(path.read_bytes()) | {"path": "/etc", "events": "../../other/events", "capture": "../good"}
    path.write_bytes(orjson.dumps(manifest))
    app = open_page(monkeypatch, tmp_path, "overview", capture="bad")
    assert not app.error
    assert "plain" in said(app)


def test_a_sweep_of_passes_that_do_not_say_their_prompt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only some of the cells have the figure, and a size that is null is none to look up by."""
    writer = new_capture(tmp_path / "bad", source="llama-bench", arms=[ManifestArm("off", "off", "off")])
    for pass_id, n_gen in enumerate([0, 8, 8]):
        times: dict[str, Any] = {"decode_ns": 10**6} if n_gen else {"ttft_ns": 10**6, "prefill_ns": 10**6}
        writer.add_pass_row(pass_id, PassKey("off", 32 * (1 + pass_id), 0, 64, n_gen, 0, pass_id, 0), **times)
    writer.finish()
    for part in (tmp_path / "bad" / "passes").glob("*.parquet"):
        pq.write_table(pq.read_table(part).drop_columns(["n_prompt"]), part)
    for cell in ("n0-ub32-d0", "n8-ub64-d0"):
        app = open_page(monkeypatch, tmp_path, "sweep", capture="bad", cell=cell)
        assert app.get("plotly_chart")
        assert not app.error


def experts_of(path: Path, used: list[bytes | None]) -> None:
    """A capture whose one part of `experts` has these bitmaps."""
    hostile(path, "plain")
    n = len(used)
    numbers = {name: pa.array([2**31 - 1] * n, pa.int32()) for name in ("n_tokens", "n_experts", "distinct", "copied")}
    places = {"pass_id": pa.array([0] * n, pa.int32()), "layer": pa.array(range(n), pa.int32())}
    ubatch = {"ubatch": pa.array([0] * n, pa.int32()), "used": pa.array(used, pa.binary())}
    (path / "experts").mkdir(exist_ok=True)
    pq.write_table(pa.table(places | ubatch | numbers), path / "experts" / "all-000000.parquet")


@pytest.mark.parametrize(
    ("used", "said_so"),
    [
        ([None, None], "only how many"),
        ([b"", None], "only how many"),
        ([b"\xff" * 100_000, b"\x01"], "the limit is 4,096"),
    ],
)
def test_bitmaps_that_are_none_or_enormous(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, used: list[bytes | None], said_so: str
) -> None:
    experts_of(tmp_path / "bad", used)
    assert said_so in said(open_page(monkeypatch, tmp_path, "selective", capture="bad"))


def test_more_layers_slots_and_letters_than_a_page_can_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each page stays far below the 64 MB that a browser is sent at once, and titles below what a canvas can draw."""
    n = 4000
    long_name = "x" * 10_000
    writer = new_capture(tmp_path / "bad", arms=[ManifestArm(long_name, "on", "on")])
    number = np.arange(n)
    rows: dict[str, Any] = {
        "pass_id": np.zeros(n, np.int32),
        "kind": ["h2d", "compute"] * (n // 2),
        "phase": ["prefill"] * n,
        "tensor": [long_name] * n,
        "t_start": number * 10,
        "t_end": number * 10 + 15,
        "layer": number // 2 % 1000,
        "ubatch": number % 400 // 2,
        "slot": number,
        "device": np.zeros(n, np.int32),
        "bytes": number,
        "whole_bytes": number,
    }
    writer.write_part("events", rows, "pass-000000")
    writer.add_pass_row(0, PassKey(long_name, 8, 0, 8, 1, 0, 0, 0), t_start=0, t_end=10 * n, ttft_ns=10 * n)
    writer.finish()
    for page in PAGES:
        app = open_page(monkeypatch, tmp_path, page, capture="bad")
        assert not app.error
        assert [
            len(chart.proto.spec) for chart in app.get("plotly_chart") if len(chart.proto.spec) > 2_000_000
        ] == [], page
        sizes = [len(table.proto.arrow_data.data) for table in app.dataframe if hasattr(table.proto, "arrow_data")]
        assert max(sizes, default=0) < 8_000_000, page


@pytest.mark.parametrize("start", [-(2**63), 2**63 - 1, None])
def test_ubatches_with_impossible_times_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, start: int | None
) -> None:
    """A difference of them may need more than 64 bits, which the timeline's header cannot hold."""
    hostile(tmp_path / "bad", "plain")
    for part in (tmp_path / "bad" / "ubatches").glob("*.parquet"):
        rows = pq.read_table(part)
        times = pa.array([start] * rows.num_rows, pa.int64())
        pq.write_table(rows.set_column(rows.schema.get_field_index("t_start"), "t_start", times), part)
    app = open_page(monkeypatch, tmp_path, "timeline", capture="bad")
    assert app.get("bidi_component")
    assert not app.error


def test_impossible_sizes_are_unknown_and_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hostile(tmp_path / "bad", "plain")
    for part in (tmp_path / "bad" / "events").glob("*.parquet"):
        rows = pq.read_table(part)
        sizes = pa.array([-(10**18), None] * (rows.num_rows // 2), pa.int64())
        pq.write_table(rows.set_column(rows.schema.get_field_index("bytes"), "bytes", sizes), part)
    app = open_page(monkeypatch, tmp_path, "overview", capture="bad")
    assert "count as unknown: 2." in said(app)
    for page in PAGES:
        turn_to(app, page)
        assert "1,000,000,000" not in said(app)


@pytest.mark.parametrize("column", ["pass_id", "n_ubatch", "repetition", "t_start", "ttft_ns"])
@pytest.mark.parametrize("value", [None, -1, 2**31 - 1])
def test_passes_with_numbers_that_are_none_or_absurd(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, column: str, value: int | None
) -> None:
    hostile(tmp_path / "bad", "plain")
    for part in (tmp_path / "bad" / "passes").glob("*.parquet"):
        rows = pq.read_table(part)
        values = pa.array([value] * rows.num_rows, rows.schema.field(column).type)
        pq.write_table(rows.set_column(rows.schema.get_field_index(column), column, values), part)
    app = open_page(monkeypatch, tmp_path, "overview", capture="bad")
    for page in ("timeline", "sweep", "memory"):
        turn_to(app, page)  # fails the test where a page raised


@given(name=st.text(max_size=40))
@example(name="good/../secret")
@example(name="../secret")
@example(name="good\x00")
@example(name="%2e%2e/secret")
@example(name="file:///etc/passwd")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_name_in_the_address_is_one_of_the_captures_or_none(tmp_path: Path, name: str) -> None:
    if not (tmp_path / "root").exists():
        hostile(tmp_path / "root" / "good", "plain")
        hostile(tmp_path / "secret", "plain")
    with pytest.raises(HprofError, match="there is no capture"):
        find_capture(TraceRoot(str(tmp_path / "root")), name)


@pytest.mark.parametrize("text", ["", "../secret", MARKUP, "9" * 5000, "\x00\x1b[2J\u202e"])
def test_any_text_of_the_query_chooses_an_option_or_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    hostile(tmp_path / "good", "plain")
    keys = ("a", "b", "cell", "passes", "lens", "unknown")
    app = open_page(monkeypatch, tmp_path, "overview", capture=text, **dict.fromkeys(keys, text))
    for page in ("timeline", "what_if"):
        turn_to(app, page)
        assert [box.value for box in app.sidebar.selectbox][:3] == ["good", "plain", "plain2"]
        assert not any(_LIVE.search(shown) for shown in texts(app))
