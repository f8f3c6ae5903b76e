"""The dashboard over large captures: what is on the screen after how long, and how many bytes it took.

    python -m benchmarks.dashboard                     # 1 M and 10 M events, and a sweep of 18 cells; needs chromium
    python -m benchmarks.dashboard --events 1e6
    python -m benchmarks.dashboard --events            # the sweep alone
    python -m benchmarks.dashboard --events 1e6 --sessions 20   # the memory of sessions at once; needs no browser

Each capture of so many events holds two passes, `off` and `on`, of half the events each, so that the timeline shows all
of them. A warm navigation opens the page anew in a browser that has been there before, against a server that has read
the capture; a cold one is the first of all. The sweep (`benchmarks/sweep_capture.py`) is opened by a server that has
shown another capture, so has imported what it needs, and once by one that has shown nothing. Of it the server's
processor seconds are told too (Linux): they mind other programs less than the clock does. Prints a table with the
targets.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.sweep_capture import write_sweep
from tests.dashboard.browser import served, serving, settled
from tests.profiler.makers import dense_off_on
from tests.support import chromium_path

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from streamlit.testing.v1 import AppTest

N_LAYERS, N_TENSORS, COPY_NS, LAYER_NS = 48, 3, 400_000, 2_000_000
KERNELS_A_LAYER = 12
Row = tuple[str, float, float | None, str]
FIRST_CANVAS = """() => {
  const host = document.querySelector('[data-testid=stBidiComponentIsolated]');
  return host && host.shadowRoot && host.shadowRoot.querySelector('.timeline')?.dataset.drawMs ? true : false;
}"""
FIRST_CHART = "() => document.querySelector('[data-testid=stMetricValue]') && document.querySelector('.js-plotly-plot')"
HEADLINE = "() => document.querySelector('[data-testid=stMetricValue]')"
OTHER_TITLE = "(told) => ![told, undefined].includes(document.querySelector('[data-testid=stMain] h1')?.innerText)"
ZOOMS = """async () => {
  const root = document.querySelector('[data-testid=stBidiComponentIsolated]').shadowRoot.querySelector('.timeline');
  const canvas = root.querySelector('canvas');
  canvas.focus();
  window.sent = 0;
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (data) { window.sent += 1; return send.call(this, data); };
  const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const took = [];
  for (const key of ['w', 'w', 'w', 'd', 'd', 'w', 'w', 's', 's', 's', 's', '0', 'w', 's', '0']) {
    const begin = performance.now();
    canvas.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
    await frame();
    took.push([performance.now() - begin, Number(root.dataset.drawMs)]);
  }
  return { took, sent: window.sent };
}"""


def write_capture(path: Path, n_events: int) -> None:
    """`off` copies each layer's weights in line, `on` one layer ahead; each copy is waited for by a kernel."""
    from profiler.manifest import ManifestArm
    from profiler.storage.writer import PassKey, new_capture

    writer = new_capture(
        path, arms=[ManifestArm("off", "off", "off"), ManifestArm("on", "on", "on")], link_h2d_gb_s=25.0
    )
    for pass_id, arm in enumerate(("off", "on")):
        columns = _pass_columns(pass_id, n_events // 2, ahead=arm == "on")
        part = f"pass-{pass_id:06d}"
        end = int(columns["t_end"].max())
        n_ubatches = int(columns["ubatch"].max()) + 1
        edges = np.arange(n_ubatches + 1) * N_LAYERS * LAYER_NS
        spans = {"phase": ["prefill"] * n_ubatches, "n_tokens": np.full(n_ubatches, 512), "policy": [arm] * n_ubatches}
        spans |= {"ubatch": np.arange(n_ubatches), "t_start": edges[:-1], "t_end": edges[1:]}
        writer.write_part("ubatches", {"pass_id": np.full(n_ubatches, pass_id), **spans}, part)
        writer.write_part("events", columns, part)
        key = PassKey(arm, 512, 0, 512 * n_ubatches, 1, 0, pass_id, 0)
        writer.add_pass_row(pass_id, key, t_start=0, t_end=end, ttft_ns=end, prefill_ns=end)
    writer.finish()


def _pass_columns(pass_id: int, n_events: int, *, ahead: bool) -> dict[str, Any]:
    import pyarrow as pa

    a_layer = N_TENSORS + KERNELS_A_LAYER
    n_layers = n_events // a_layer
    rng = np.random.default_rng(pass_id)
    begin = np.arange(n_layers)[:, None] * LAYER_NS
    copies = begin - (LAYER_NS // 2 if ahead else 0) + np.arange(N_TENSORS) * (COPY_NS + 5_000)
    after = COPY_NS * N_TENSORS + 40_000
    kernels = begin + after + np.arange(KERNELS_A_LAYER) * 60_000
    starts = np.concatenate([np.maximum(copies, 0), kernels], axis=1)
    lengths = np.concatenate(
        [
            rng.integers(COPY_NS * 9 // 10, COPY_NS, (n_layers, N_TENSORS)),
            rng.integers(20_000, 59_000, (n_layers, KERNELS_A_LAYER)),
        ],
        axis=1,
    )
    n = n_layers * a_layer
    is_copy = np.tile(np.arange(a_layer) < N_TENSORS, n_layers)
    layer = np.repeat(np.arange(n_layers), a_layer)
    number = np.arange(n)
    reads = np.tile(np.arange(a_layer) == N_TENSORS, n_layers)
    experts = rng.integers(8, 128, n)
    tensors = [f"blk.{i}.ffn_{part}_exps.weight" for i in range(N_LAYERS) for part in ("gate", "up", "down")]
    of_tensor = (layer % N_LAYERS) * N_TENSORS + np.tile(np.minimum(np.arange(a_layer), N_TENSORS - 1), n_layers)

    def label(codes: np.ndarray, names: list[str], mask: np.ndarray | None = None) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32), mask=mask), pa.array(names))

    columns: dict[str, Any] = {
        "pass_id": np.full(n, pass_id, np.int32),
        "phase": label(np.zeros(n), ["prefill"]),
        "ubatch": (layer // N_LAYERS).astype(np.int32),
        "layer": (layer % N_LAYERS).astype(np.int32),
        "process": np.full(n, 1),
        "device": np.zeros(n, np.int32),
        "stream": label(~is_copy, ["copy", "compute"]),
        "kind": label(~is_copy, ["h2d", "compute"]),
        "name": label(~is_copy, ["copy selective", "experts"]),
        "tensor": label(of_tensor, tensors, mask=~is_copy),
        "t_start": starts.ravel(),
        "t_end": (starts + lengths).ravel(),
        "bytes": pa.array(experts * 78_000, mask=~is_copy),
        "whole_bytes": pa.array(np.full(n, 128 * 78_000), mask=~is_copy),
        "n_tokens": np.full(n, 512, np.int32),
        "n_experts": pa.array(experts.astype(np.int32), mask=~is_copy),
        "slot": pa.array((layer % 2).astype(np.int32), mask=~is_copy),
        "correlation_id": pa.array(number, mask=~is_copy),
        "waits_for": pa.array(number - 1, mask=~reads),
    }
    return columns


@contextmanager
def _browser() -> Iterator[Page]:
    """A page of a fresh browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        yield browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        browser.close()


@contextmanager
def opened(address: str, first: str = "import") -> Iterator[Page]:
    """A page of a fresh browser that has been at the address before; `first` is what it looked at there."""
    with _browser() as page:
        page.goto(f"{address}/{first}")  # the import page reads no capture of one cell
        page.wait_for_selector("[data-testid=stMain] h1", timeout=120_000)
        settled(page)
        yield page


def largest_message(page: Page, address: str) -> int:
    """Bytes of the largest message that the page gets from the server. Listening slows the page: not while timing."""
    sizes: list[int] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda data: sizes.append(len(data))))
    seconds_until(page, address, FIRST_CANVAS)
    page.wait_for_timeout(1000)
    return max(sizes)


def seconds_until(page: Page, address: str, *conditions: str) -> list[float]:
    """From navigation to each of the conditions, which come one after the other."""
    begin, took = time.perf_counter(), []
    page.goto(address)
    for condition in conditions:
        page.wait_for_function(condition, timeout=120_000)
        took.append(time.perf_counter() - begin)
    return took


def measure(root: Path, n_events: int) -> list[Row]:
    """The rows of one size."""
    big = n_events > 2_000_000
    with served(root) as address, opened(address) as page:
        cold = seconds_until(page, f"{address}/timeline", FIRST_CANVAS)[0]
        warm = [seconds_until(page, f"{address}/timeline", FIRST_CANVAS)[0] for _ in range(5)]
        page.wait_for_timeout(2000)
        zooms = page.evaluate(ZOOMS)
        status = page.locator(".timeline .status").inner_text()
        headline, overview_first = seconds_until(page, f"{address}/", HEADLINE, FIRST_CHART)
        overview = [seconds_until(page, f"{address}/", FIRST_CHART)[0] for _ in range(5)]
        timeline_message = largest_message(page, f"{address}/timeline") / 2**20
    print(f"{n_events:,} events: {status}", file=sys.stderr)
    waits, draws = (max(step[i] for step in zooms["took"]) / 1e3 for i in (0, 1))
    return [
        ("timeline on screen, first time (server reads)", cold, 6.0 if big else None, "s"),
        ("timeline on screen, warm navigation", statistics.median(warm), 4.0 if big else 1.5, "s"),
        ("overview's headline, first time", headline, 6.0 if big else None, "s"),
        ("overview's first chart, first time", overview_first, None, "s"),
        ("overview's first chart, warm navigation", statistics.median(overview), 4.0 if big else 1.5, "s"),
        ("zoom or pan to painted, slowest of 15", waits, 0.1, "s"),
        ("  of which drawing", draws, 0.1, "s"),
        ("messages to the server while zooming", zooms["sent"], 0.0, ""),
        ("largest message, timeline's page", timeline_message, 15.0, "MiB"),
    ]


def measure_sweep(root: Path) -> list[Row]:
    """The rows of a sweep: its Overview's first open, and swaps of A and B. `root` holds it and a small capture."""
    with serving(root) as (address, server), opened(address, "?capture=small") as page:
        first = _overview(page, address, server)
        swap, back = (_swap(page, server) for _ in range(2))
    with serving(root) as (address, server), _browser() as page:
        cold = _overview(page, address, server)
    return [
        *_rows_of("Overview's first chart, first open", first, 2.0),
        *_rows_of("as the server's first page of all, with imports", cold, None),
        ("swap of A and B, until the page stands still", swap[0], 0.5, "s"),
        ("  the server's processor", swap[1], None, "s"),
        ("swap back, until the page stands still", back[0], 0.5, "s"),
        ("  the server's processor", back[1], None, "s"),
    ]


def _rows_of(name: str, took: list[float], target: float | None) -> list[Row]:
    """The rows of what `_overview` measured."""
    names = (name, "  the server's processor until then", "  until the page stands still", "  the server's processor")
    return [
        (row, value, None if number else target, "s")
        for number, (row, value) in enumerate(zip(names, took, strict=True))
    ]


def _overview(page: Page, address: str, server: int) -> list[float]:
    """Seconds of the clock and of the server's processor, until the first chart and until the page stands still."""
    begin, worked = time.perf_counter(), processor_s(server)
    (chart,) = seconds_until(page, f"{address}/?capture=sweep", FIRST_CHART)
    at_chart = processor_s(server) - worked
    settled(page)
    return [chart, at_chart, time.perf_counter() - begin, processor_s(server) - worked]


def _swap(page: Page, server: int) -> tuple[float, float]:
    """Seconds until the page stands still, and processor seconds of the server."""
    page.wait_for_timeout(1000)
    title = page.locator("[data-testid=stMain] h1").inner_text()
    begin, worked = time.perf_counter(), processor_s(server)
    page.locator(".st-key-swap button").click()
    page.wait_for_function(OTHER_TITLE, arg=title, timeout=120_000)
    settled(page)
    return time.perf_counter() - begin, processor_s(server) - worked


def processor_s(process: int) -> float:
    """What a process and its threads have computed so far, in seconds; NaN where the system does not say."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system time


def figure_sizes(root: Path) -> list[Row]:
    """The plotly figures of every page, as JSON."""
    from streamlit.testing.v1 import AppTest

    sys.argv = ["app.py", "--traces", str(root)]
    app = AppTest.from_file(
        str(Path(__file__).resolve().parents[1] / "dashboard" / "app.py"), default_timeout=300
    ).run()
    rows: list[Row] = []
    for page in ("overview", "timeline", "sweep", "selective", "layers", "memory"):
        app.switch_page(f"views/{page}.py").run()
        sizes = [len(chart.proto.spec) / 2**20 for chart in app.get("plotly_chart")]
        if sizes:
            rows.append((f"largest figure, {page}", max(sizes), 2.0, "MiB"))
    return rows


def sessions_memory(root: Path, n_sessions: int) -> list[Row]:
    """What the process holds after so many sessions have each looked at the pages of a capture, all still open."""
    from streamlit.testing.v1 import AppTest

    sys.argv = ["app.py", "--traces", str(root)]
    script = str(Path(__file__).resolve().parents[1] / "dashboard" / "app.py")
    sessions = []
    for number in range(n_sessions):
        session = AppTest.from_file(script, default_timeout=300)
        session.query_params["a"] = ("off", "on")[number % 2]
        _without_fault(session.run())
        for page in ("timeline", "layers"):
            _without_fault(session.switch_page(f"views/{page}.py").run())
        sessions.append(session)
    held_gib = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**30
    a = {session.sidebar.selectbox[1].value for session in sessions[::2]}
    assert a == {"off"}, f"sessions that chose 'off' show {a}"
    return [(f"held with {n_sessions} sessions", held_gib, 1.0, "GiB")]


def _without_fault(session: AppTest) -> None:
    """A page that failed holds little memory, and would pass for a frugal one."""
    if session.exception:
        raise AssertionError(f"a session ended in: {session.exception[0].message}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, help="only the memory that so many sessions at once take")
    parser.add_argument("--events", type=float, nargs="*", default=[1e6, 1e7])
    failed = False
    options = parser.parse_args()
    if not options.sessions:
        with tempfile.TemporaryDirectory() as folder:
            write_sweep(Path(folder) / "sweep")
            dense_off_on(Path(folder) / "small")
            failed |= tell("a sweep of 18 cells and 4 arms", measure_sweep(Path(folder)))
    for n_events in map(int, options.events):
        with tempfile.TemporaryDirectory() as folder:
            write_capture(Path(folder) / "big", n_events)
            if options.sessions:
                rows = sessions_memory(Path(folder), options.sessions)
            else:
                rows = measure(Path(folder), n_events)
            if not options.sessions and n_events <= 2_000_000:
                rows += figure_sizes(Path(folder))
        failed |= tell(f"{n_events:,} events", rows)
    return int(failed)


def tell(what: str, rows: list[Row]) -> bool:
    """Prints the rows; whether a target was missed."""
    print(f"\n{what}")
    verdicts = ["" if target is None else "ok" if value <= target else "MISSED" for _, value, target, _ in rows]
    for (name, value, target, unit), verdict in zip(rows, verdicts, strict=True):
        aim = "" if target is None else f"<= {target:g} {unit}"
        print(f"  {name:<48} {value:>9.3f} {unit:<3} {aim:>10}  {verdict}")
    return "MISSED" in verdicts


if __name__ == "__main__":
    sys.exit(main())
