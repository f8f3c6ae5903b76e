"""Hostile captures: nothing of them is executed, nothing outside the root is read, and the page goes on working."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from profiler.manifest import Arm
from profiler.writer import PassKey, new_capture
from tests.dashboard.pages import PAGES, open_page, said, texts, turn_to

# Not behind a backslash: HTML, an image, a link, a formula, a colour.
_LIVE = re.compile(r"(?<!\\)(<img|!\[x|\[go|\$\$|:red\[y)")
MARKUP = "<img src=x onerror=alert(1)> ![x](http://evil.example/x.png) [go](javascript:alert(1)) $$x$$ :red[y]"


def hostile(path: Path, name: str = MARKUP) -> None:
    """Markup wherever a capture can hold text."""
    writer = new_capture(
        path,
        arms=[Arm(name, name, name, {"flag": name}, [name]), Arm(f"{name}2", name, name)],
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
