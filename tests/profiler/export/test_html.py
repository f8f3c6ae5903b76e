"""The HTML report is one file that asks for nothing, shows every text as text, and draws its timeline."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.devices.factory import DeviceOptions
from profiler.capture import Capture
from profiler.export import export
from profiler.export.html import MAX_SLICES, page_timeline
from profiler.export.tracks import tracks_of
from profiler.planning.request import GridPoint, RunRequest
from profiler.storage.writer import new_capture
from tests.profiler.makers import dense_off_on, empty, imported_without_passes, passes_without_events
from tests.profiler.runs import make_capture

HOSTILE = '"><img src=x onerror="document.title=1"></script><script>document.title=2</script>'


def _hostile(path: Path) -> Capture:
    writer = new_capture(
        path, source="nsys", model={"name": HOSTILE}, warnings=[HOSTILE], cannot_say=[HOSTILE], dropped={HOSTILE: 3}
    )
    columns = {"kind": ["compute", "h2d"], "name": [HOSTILE] * 2, "device": [0] * 2, "stream": [HOSTILE] * 2}
    writer.write_part("events", columns | {"t_start": [0, 5], "t_end": [10, 9], "bytes": [None, 4]}, "trace")
    writer.finish()
    return Capture.open(path)


def _written(capture: Capture, path: Path) -> str:
    export([capture], "html", path)
    return path.read_text("utf-8")


def test_the_page_asks_for_nothing(tmp_path: Path) -> None:
    page = _written(dense_off_on(tmp_path / "c"), tmp_path / "r.html")
    assert not re.search(r"""(?:src|href|url)\s*[=(]""", page.split("<script", maxsplit=1)[0])
    assert "http" not in page.replace('http-equiv="Content-Security-Policy"', "")
    assert "default-src 'none'" in page
    assert len(page) < 40_000


def test_the_page_says_what_the_report_says(tmp_path: Path) -> None:
    page = _written(dense_off_on(tmp_path / "c"), tmp_path / "r.html")
    assert '<td class="faster">1.39 faster</td>' in page
    assert "same tokens, logits bit-identical" in page
    assert "copies-on-compute-stream" in page


@pytest.mark.parametrize("make", [empty, imported_without_passes, passes_without_events])
def test_captures_of_every_kind_have_a_page(tmp_path: Path, make: Any) -> None:
    page = _written(make(tmp_path / "c"), tmp_path / "r.html")
    assert page.startswith("<!doctype html>")
    assert ("timeline-data" in page.split("<script>", maxsplit=1)[0]) == (make is imported_without_passes)


def _column(track: dict[str, Any], name: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(track["columns"][name]), kind)


def test_the_page_says_where_weights_lie_and_what_each_device_did(tmp_path: Path) -> None:
    device = DeviceOptions("sim", n_devices=2)
    request = RunRequest(cells=(GridPoint(64, 0, 32, 0),), device=device, model="tiny-moe", arms=("off", "on"))
    page = _written(make_capture(tmp_path / "c", request), tmp_path / "r.html")
    assert "<h2>Device memory by arm</h2>" in page
    assert "<h2>By device, in one pass</h2>" in page
    assert page.count("<td>off</td><td>1</td>") == 1


def test_the_timeline_holds_each_slice(tmp_path: Path) -> None:
    capture = dense_off_on(tmp_path / "c")
    off, on = page_timeline(tracks_of([(capture, [6, 7])]))["tracks"]
    assert [lane["category"] for lane in on["lanes"]] == ["h2d", "compute"]
    assert _column(on, "start", "<f8")[:6].tolist() == [n * 100_000 for n in range(6)]
    assert _column(on, "lane", "<u2").tolist() == [0] * 6 + [1] * 6
    assert _column(off, "bytes", "<f4").tolist() == [8000] * 6 + [-1] * 6
    assert (off["n_rows"], off["n_slices"]) == (12, 12)


def test_a_long_timeline_is_merged_until_it_fits_and_says_so(tmp_path: Path) -> None:
    n = 4 * MAX_SLICES
    start = np.arange(n) * 100
    start[-1] += 10**6
    writer = new_capture(tmp_path / "c", source="nsys")
    columns = {"kind": ["compute"] * n, "device": [0] * n, "name": ["k"] * n, "t_start": start, "t_end": start + 40}
    writer.write_part("events", columns, "trace")
    writer.finish()
    capture = Capture.open(tmp_path / "c")
    (track,) = page_timeline(tracks_of([(capture, None)]))["tracks"]
    assert track["n_rows"] == n
    assert track["n_slices"] <= MAX_SLICES
    assert _column(track, "count", "<u4").sum() == n
    assert _column(track, "name", "<u2")[-1] == 0  # the last one stands apart and keeps its name
    assert f"{n:,} events are drawn as" in _written(capture, tmp_path / "r.html")


@pytest.mark.browser
def test_a_browser_draws_it_and_sends_nothing(tmp_path: Path, chromium: Any) -> None:
    _written(dense_off_on(tmp_path / "c"), tmp_path / "r.html")
    page, asked, faults = chromium.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto((tmp_path / "r.html").as_uri())
    assert page.inner_text("h1").startswith("c")
    painted = """() => {
      const canvas = document.querySelector("canvas");
      return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((v) => v > 0);
    }"""
    assert page.evaluate(painted)
    page.hover("#timeline canvas", position={"x": 240, "y": 50})
    assert page.inner_text("#tip").splitlines()[0] == "ffn"
    assert "GB/s" in page.inner_text("#tip")
    before = page.get_attribute("#timeline", "data-view")
    page.focus("#timeline")
    page.keyboard.press("w")
    page.wait_for_function(f"() => document.getElementById('timeline').dataset.view !== '{before}'")
    assert asked == [(tmp_path / "r.html").as_uri()]
    assert faults == []


@pytest.mark.browser
def test_a_browser_runs_nothing_of_what_a_capture_names(tmp_path: Path, chromium: Any) -> None:
    _written(_hostile(tmp_path / "c"), tmp_path / "r.html")
    page, asked = chromium.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "r.html").as_uri())
    page.hover("#timeline canvas", position={"x": 300, "y": 50})
    assert page.title() == "hprof: c"
    assert page.locator("img").count() == 0
    assert HOSTILE in page.inner_text("main")
    assert len(asked) == 1
