"""The timeline under hand in a real browser: zoom, search, a stretch's figures, what is out of order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.dashboard.browser import SPAN, Watch, address_of, settled, span

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

_COUNT_MESSAGES = """() => {
  window.sent = 0;
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (data) { window.sent += 1; return send.call(this, data); };
}"""


def test_timeline_zooms_moves_selects_measures_and_searches_without_the_server(page: Page, address: str) -> None:
    watch = Watch(page)
    page.goto(f"{address}/timeline?capture=dense")
    settled(page)
    canvas = page.locator(".timeline canvas")
    canvas.wait_for()
    page.wait_for_function(
        "document.querySelector('[data-testid=stBidiComponentIsolated]').shadowRoot.querySelector('.timeline').dataset.view"
    )
    page.evaluate(_COUNT_MESSAGES)
    whole = span(page)
    canvas.click(position={"x": 400, "y": 10})
    page.mouse.wheel(0, -300)
    page.wait_for_function(f"(({SPAN})()) < {whole * 0.8}")
    page.keyboard.press("w")
    page.wait_for_function(f"(({SPAN})()) < {whole * 0.5}")
    page.keyboard.press("0")
    page.wait_for_function(f"(({SPAN})()) === {whole}")
    # the first copy of arm A, then the compute that waited for it
    canvas.focus()
    page.keyboard.press("ArrowRight")
    details = page.locator(".timeline .details")
    details.get_by_text("Read by: ffn → layer").wait_for()
    assert "7.81 KiB" in details.inner_text()
    assert "80 % of the link" in details.inner_text()
    details.get_by_role("button", name="Read by").click()
    details.get_by_text("Waited for copy").wait_for()
    page.locator(".timeline .search").fill("layer:1 kind:compute")
    page.locator(".timeline .found").get_by_text("6 matches").wait_for()
    page.locator(".timeline .search").fill("")
    page.locator(".timeline [data-do=measure]").click()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 300, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 100, steps=4)
    page.mouse.up()
    assert float(page.locator(".timeline").get_attribute("data-draw-ms") or "1e9") < 100
    assert page.evaluate("window.sent") == 0, "the server was asked"
    watch.check()


def test_timeline_tells_what_a_stretch_holds_and_finds_the_other_arms_layer(page: Page, address: str) -> None:
    watch = Watch(page)
    page.set_viewport_size({"width": 1280, "height": 620})
    page.goto(f"{address}/timeline?capture=dense")
    settled(page)
    canvas, found = page.locator(".timeline canvas"), page.locator(".timeline .found")
    canvas.wait_for()
    page.wait_for_function(f"({SPAN})() > 0")
    box = canvas.bounding_box()
    assert box is not None
    assert 620 - 60 < box["y"] + box["height"] <= 620, "the window's height"
    # the name of A's first ubatch chooses its stretch: 2 copies of 100 us, 2 times 60 us of compute
    page.mouse.click(box["x"] + 300, box["y"] + 39)
    statistics = page.locator(".timeline .statistics")
    statistics.get_by_role("heading", name="320 µs chosen").wait_for()
    copied, computed = (
        dict(line.split("\t", 1) for line in statistics.get_by_role("table", name=kind).inner_text().splitlines()[1:])
        for kind in ("copy H2D", "compute")
    )
    assert copied["exposed"].split("\t")[0] == "200 µs"
    assert computed["busy"].split("\t")[0] == "120 µs"
    assert copied["bytes"].split("\t")[0] == "15.6 KiB"
    # search counts, dims and steps
    page.locator(".timeline .search").fill("layer:1")
    found.get_by_text(re.compile(r"^\d+ matches$")).wait_for()
    page.get_by_role("button", name="Next match").click()
    found.get_by_text(re.compile(r"^1 of \d+ matches$")).wait_for()
    canvas.focus()
    details = page.locator(".timeline .details")
    assert "A · " in details.inner_text()
    page.keyboard.press("o")
    details.get_by_text("B · ").wait_for()
    assert "Layer\n1" in details.inner_text()
    page.locator(".timeline .search").fill("")
    # a tooltip is of what lies under the pointer after the view has moved
    now = canvas.bounding_box()
    assert now is not None
    page.mouse.move(now["x"] + 350, now["y"] + 75)
    tip = page.locator(".timeline .tip")
    tip.wait_for()
    canvas.focus()
    for _ in range(4):
        page.keyboard.press("w")
    assert tip.is_visible(), "zoomed at the pointer"
    page.keyboard.press("d")
    tip.wait_for(state="hidden")
    page.keyboard.press("a")
    tip.wait_for()
    # a click on an arm's name folds it
    n_lanes = len((page.locator(".timeline").get_attribute("data-lanes") or "").split("|"))
    for n in (n_lanes // 2, n_lanes):
        page.mouse.click(now["x"] + 40, now["y"] + 39)
        page.wait_for_function(_LANES_ARE, arg=n)
    watch.check()


_ROOT = "document.querySelector('[data-testid=stBidiComponentIsolated]').shadowRoot.querySelector('.timeline')"
_LANES_ARE = """(n) => document.querySelector('[data-testid=stBidiComponentIsolated]').shadowRoot
  .querySelector('.timeline').dataset.lanes.split('|').length === n"""


def test_timeline_marks_both_operations_of_what_is_out_of_order(page: Page, address: str) -> None:
    watch = Watch(page)
    page.goto(f"{address}/timeline?capture=disorder&a=on&b=off")
    settled(page)
    page.locator(".timeline .legend").get_by_role("button", name="pairs out of order").click()
    details = page.locator(".timeline .details")
    details.get_by_text("Out of order: read before its write").first.wait_for()
    details.get_by_role("heading", name=re.compile("ffn|mix")).wait_for()
    details.get_by_role("button", name="The other operation").first.click()
    details.get_by_role("heading", name="copy whole").wait_for()
    details.get_by_text("Out of order: read before its write").first.wait_for()
    watch.check()


_ACCENTED = """() => {
  const canvas = document.querySelector('[data-testid=stBidiComponentIsolated]').shadowRoot.querySelector('canvas');
  const probe = document.createElement('canvas').getContext('2d'), ratio = window.devicePixelRatio || 1;
  probe.fillStyle = '#0072B2'; // the light theme's
  probe.fillRect(0, 0, 1, 1);
  const [r, g, b] = probe.getImageData(0, 0, 1, 1).data, y = Math.round(90 * ratio);
  const row = canvas.getContext('2d').getImageData(0, y, canvas.width, 1).data;
  let columns = 0;
  for (let i = 0; i < row.length; i += 4) columns += row[i] === r && row[i + 1] === g && row[i + 2] === b;
  return columns;
}"""
"""JavaScript: how many pixels of a row of lanes have the accent's colour, as edges of a stretch do."""


def test_stretches_of_an_imported_trace_become_arms(page: Page, address: str) -> None:
    watch = Watch(page)
    page.goto(f"{address}/timeline?capture=one-trace&at=0~320000")
    settled(page)
    make = page.locator(".timeline .statistics").get_by_role("button", name="Make this an arm")
    make.click()
    page.get_by_label("0 ns to 320 us").wait_for()
    page.locator(".timeline .statistics").wait_for(state="hidden")
    page.wait_for_function(f"(({_ACCENTED})()) >= 2")  # the arm shows where it lies, now that nothing is chosen
    box = page.locator(".timeline canvas").bounding_box()
    assert box is not None
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + 60, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    make.click()
    page.get_by_role("textbox").nth(1).wait_for()
    page.wait_for_function(f"(({_ACCENTED})()) >= 4")
    page.get_by_role("button", name="Make a capture of these arms").click()
    page.get_by_role("heading", name="The arm on against off").wait_for()
    assert "capture=one-trace-arms" in address_of(page)
    watch.check()


def test_a_finding_leads_to_its_event_and_the_address_keeps_what_is_chosen(page: Page, address: str) -> None:
    watch = Watch(page)
    page.goto(f"{address}/?capture=disorder&a=off&b=on")
    settled(page)
    page.locator("[data-testid=stExpander] summary").filter(has_text="Ordering").click()
    settled(page)
    # by key: what lies around an unfolding line still moves, and a press and a release at two places are no click
    page.get_by_role("link", name="See it on the timeline: on").press("Enter")
    details = page.locator(".timeline .details")
    details.get_by_text("Out of order: read before its write").first.wait_for()
    assert "B · compute" in details.inner_text()
    page.wait_for_function("location.search.includes('at=b')")
    chosen = address_of(page)
    assert "jump" not in chosen
    page.keyboard.press("Escape")
    page.goto(chosen)
    settled(page)
    details.get_by_text("Out of order: read before its write").first.wait_for()
    watch.check()


def test_the_timeline_under_fingers(browser: Browser, address: str) -> None:
    phone = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = phone.new_page()
    watch = Watch(page)
    page.goto(f"{address}/timeline?capture=dense")
    settled(page)
    page.wait_for_function(f"({SPAN})() > 0")
    canvas = page.locator(".timeline canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    whole, middle, height = span(page), box["x"] + 240, box["y"] + 75
    fingers = phone.new_cdp_session(page)

    def touch(kind: str, *places: float, first: int = 0) -> None:
        points = [{"x": x, "y": height, "id": number} for number, x in enumerate(places, first)]
        fingers.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})

    # two fingers zoom; the one that stays moves what they left
    touch("Start", middle - 30)
    touch("Start", middle - 30, middle + 30)
    for apart in (50, 70, 90):
        touch("Move", middle - apart, middle + apart)
    page.wait_for_function(f"(({SPAN})()) < {whole * 0.35}")
    zoomed, left = span(page), page.locator(".timeline").get_attribute("data-view")
    touch("End", middle - 90)  # the first one is lifted
    for x in (80, 70, 60):
        touch("Move", middle + x, first=1)
    touch("End")
    page.wait_for_function(f"{_ROOT}.dataset.view !== '{left}'")
    assert span(page) == zoomed
    # a tap chooses, and the details cover nothing of the chart
    page.locator(".timeline [data-do=fit]").click()
    page.wait_for_function(f"(({SPAN})()) === {whole}")
    now = canvas.bounding_box()
    assert now is not None
    page.touchscreen.tap(now["x"] + 113, now["y"] + 65)  # the first copy, until 100 us
    page.locator(".timeline .details h4").wait_for()
    dock, chart = page.locator(".timeline .dock").bounding_box(), canvas.bounding_box()
    assert dock is not None
    assert chart is not None
    assert dock["y"] >= chart["y"] + chart["height"]
    # one finger chooses a stretch
    page.locator(".timeline [data-do=measure]").click()
    canvas.scroll_into_view_if_needed()
    touch("Start", box["x"] + 120)
    for x in (160, 200, 240):
        touch("Move", box["x"] + x)
    touch("End")
    page.locator(".timeline .statistics h3").wait_for()
    watch.check()
    phone.close()


def test_what_is_chosen_is_told_in_the_window(page: Page, address: str) -> None:
    page.goto(f"{address}/timeline?capture=dense&at=a:0~100000")
    settled(page)
    details = page.locator(".timeline .details")
    details.get_by_text("Read by").wait_for()
    box = details.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 900
