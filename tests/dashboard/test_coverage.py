"""What the timeline draws has the area of the busy time, at every zoom: pixels read back from a real browser."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

from dashboard.figures.style import TIMELINE
from profiler.storage.writer import new_capture
from tests.dashboard.browser import served, settled
from tests.support import chromium_path

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

N_PERIODS: Final = 20_000
PERIOD_NS: Final = 1000  # copies at 0 to 240 of each, compute at 120 to 600: half of every copy is hidden
COPY_NS, COMPUTE_NS, HIDDEN_NS = 240, 480, 120
LABEL_WIDTH, STRONG = 148, 0.95  # 05_layout.js, 06_lanes.js


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    path = chromium_path()
    from playwright.sync_api import sync_playwright

    root = tmp_path_factory.mktemp("dense")
    dense(root / "dense")
    overlapping(root / "overlapping")
    with served(root) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        page.goto(f"{address}/timeline?capture=dense")
        settled(page)
        page.locator(".timeline canvas").wait_for()
        yield page
        browser.close()


def dense(path: Path) -> None:
    """One device, a copy and a kernel in every period."""
    at = np.arange(N_PERIODS, dtype=np.int64) * PERIOD_NS
    kernel = at + COPY_NS - HIDDEN_NS
    write(path, [("h2d", at, at + COPY_NS), ("compute", kernel, kernel + COMPUTE_NS)])


def overlapping(path: Path) -> None:
    """Two copies at once in every period, the second half a copy later; compute hides what the first does not reach."""
    at = np.arange(N_PERIODS, dtype=np.int64) * PERIOD_NS
    later, kernel = at + COPY_NS // 2, at + COPY_NS
    copies = [("h2d", at, at + COPY_NS), ("h2d", later, later + COPY_NS)]
    write(path, [*copies, ("compute", kernel, kernel + COMPUTE_NS)])


def write(path: Path, work: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> None:
    """A trace of one device: kind, starts and ends."""
    n = len(work) * N_PERIODS
    rows: dict[str, Any] = {
        "device": [0] * n,
        "stream": [stream for kind, *_ in work for stream in ["8" if kind == "compute" else "7"] * N_PERIODS],
        "kind": [name for kind, *_ in work for name in [kind] * N_PERIODS],
        "t_start": np.concatenate([start for _, start, _ in work]).tolist(),
        "t_end": np.concatenate([end for *_, end in work]).tolist(),
        "layer": [0] * n,
        "process": [1] * n,
    }
    writer = new_capture(path, source="nsys")
    writer.write_part("events", rows, "trace")
    writer.finish()


def pixels(page: Page) -> np.ndarray:
    """The canvas over white, right of the labels: rows x columns x RGB."""
    width, height, data = page.evaluate(
        """() => {
          const root = document.querySelector('[data-testid=stBidiComponentIsolated]').shadowRoot;
          const canvas = root.querySelector('.timeline canvas');
          const image = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          let text = '';
          for (let i = 0; i < image.data.length; i++) text += String.fromCharCode(image.data[i]);
          return [canvas.width, canvas.height, btoa(text)];
        }"""
    )
    rgba = np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4).astype(float)
    alpha = rgba[..., 3:] / 255
    return np.asarray((rgba[..., :3] * alpha + 255 * (1 - alpha))[:, LABEL_WIDTH:])


def lane_edges(page: Page) -> list[tuple[int, int]]:
    """Top and height of each lane on the canvas."""
    told = page.locator(".timeline").get_attribute("data-lanes") or ""
    places = [lane.rpartition("@")[2].split("+") for lane in told.split("|")]
    return [(int(top), int(height)) for top, height in places]


def drawn_shares(picture: np.ndarray, edges: tuple[int, int], colours: list[str]) -> np.ndarray:
    """How much of a lane's area has each colour."""
    top, height = edges
    ground = picture[top + height + 1]  # the gap below it, column by column
    inks = np.array([[int(str(TIMELINE["light"][c])[i : i + 2], 16) for i in (1, 3, 5)] for c in colours], float)
    shares = []
    for x in range(picture.shape[1]):
        basis = (inks - ground[x]).T
        found, *_ = np.linalg.lstsq(basis, (picture[top : top + height, x] - ground[x]).T, rcond=None)
        shares.append(found.mean(axis=1))
    return np.asarray(np.mean(shares, axis=0))


def zoom_to(page: Page, from_ns: int, to_ns: int, capture: str = "dense") -> None:
    """A link to this stretch."""
    page.goto(f"{page.url.split('?')[0]}?capture={capture}&view={from_ns}~{to_ns}")
    settled(page)
    page.wait_for_function(
        """([from, to]) => {
          const host = document.querySelector('[data-testid=stBidiComponentIsolated]');
          const view = host?.shadowRoot?.querySelector('.timeline')?.dataset.view?.split('~').map(Number);
          return view && Math.abs(view[0] - from) < 5 && Math.abs(view[1] - to) < 5;
        }""",
        arg=[from_ns, to_ns],
    )


@pytest.mark.parametrize("periods", [N_PERIODS // 2, 2500, 200, 20])
def test_the_area_drawn_is_the_busy_time(page: Page, periods: int) -> None:
    begin = 1000 * PERIOD_NS
    zoom_to(page, begin, begin + periods * PERIOD_NS)
    picture = pixels(page)
    copying, computed = lane_edges(page)
    assert min(copying[1], computed[1]) >= 16
    (computing,) = drawn_shares(picture, computed, ["compute"])
    assert computing / STRONG == pytest.approx(COMPUTE_NS / PERIOD_NS, rel=0.02)
    if picture.shape[1] / periods < 4:  # wider, exposed copies are hollow and hatched
        hidden, exposed = drawn_shares(picture, copying, ["h2d", "exposed"])
        assert exposed == pytest.approx((COPY_NS - HIDDEN_NS) / PERIOD_NS, rel=0.02)
        assert hidden / STRONG + exposed == pytest.approx(COPY_NS / PERIOD_NS, rel=0.02)


def test_of_copies_that_overlap_each_row_has_the_area_of_its_own(page: Page) -> None:
    zoom_to(page, 1000 * PERIOD_NS, 3500 * PERIOD_NS, "overlapping")
    picture = pixels(page)
    (top, height), _ = lane_edges(page)
    middle = top + (height + 1) // 2  # 05_rows.js
    rows = ((top, middle - top - 1), (middle, top + height - middle - 1))
    for number, expected in ((0, (0, COPY_NS)), (1, (COPY_NS // 2, COPY_NS // 2))):
        assert rows[number][1] >= 15
        told = drawn_shares(picture, rows[number], ["h2d", "exposed"])
        hidden_ns, exposed_ns = expected
        assert told[0] / STRONG == pytest.approx(
            hidden_ns / PERIOD_NS, abs=0.01
        )  # where an edge parts a pixel, both colours
        assert told[1] == pytest.approx(exposed_ns / PERIOD_NS, rel=0.03)
