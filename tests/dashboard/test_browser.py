"""The dashboard in a real browser: every page, links, downloads, an upload."""

from __future__ import annotations

import csv
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import orjson
import pytest

import hprof
from executor.units import format_value
from tests.dashboard.browser import SPAN, Watch, address_of, settled, span
from tests.profiler.importers.nsys.exports import KERNEL, MEMCPY, copy, kernel, write_export

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

PATHS = ("", "timeline", "sweep", "selective", "layers", "memory", "what-if", "advise", "import")
TITLES = (
    "Prefetch made|Prefetch against",
    "Timeline",
    "At which sizes",
    "What does the selective copy save",
    "Which layers wait",
    "What does the device hold",
    "What would another link",
    "What should I set",
    "Import",
)


@pytest.mark.parametrize("capture", ["example", "example-sweep"])
def test_every_page_loads_without_a_complaint(page: Page, address: str, root: Path, capture: str) -> None:
    if not (root / capture).is_dir():
        pytest.skip(f"traces/{capture} is not there")
    watch = Watch(page)
    page.goto(f"{address}/?capture={capture}")
    settled(page)
    for path, title in zip(PATHS, TITLES, strict=True):
        if path:
            page.locator(f"[data-testid=stSidebarNav] a[href$='/{path}']").click()
            page.wait_for_url(re.compile(f"/{path}"))
        page.get_by_role("heading", level=1, name=re.compile(title)).wait_for(timeout=60_000)
        settled(page)
        watch.check()


def test_figures_are_the_reports(page: Page, address: str, root: Path) -> None:
    report = orjson.loads(orjson.dumps(hprof.open(str(root / "dense")).report().to_json()))
    arms = report["cells"][0]["arms"]
    page.goto(f"{address}/?capture=dense")
    settled(page)
    cards = page.locator("[data-testid=stMetric]")
    shown = {
        card.locator("label").inner_text(): card.locator("[data-testid=stMetricValue]").inner_text()
        for card in cards.all()
    }
    for label, name, unit in (
        ("Time to first token", "ttft_ns", "ns"),
        ("Prefill, tokens a second", "prefill_tokens_per_s", "tokens/s"),
        ("Decode, tokens a second", "decode_tokens_per_s", "tokens/s"),
        ("Bytes copied to the device", "bytes_h2d", "bytes"),
        ("Exposed copy time", "exposed_copy_ns", "ns"),
        ("Device memory at the peak", "vram_peak_bytes", "bytes"),
    ):
        assert shown[label] == format_value(arms["on"][name]["median"], unit)
        assert page.get_by_text(f"A off: {format_value(arms['off'][name]['median'], unit)}").count() > 0
    change = report["cells"][0]["against_baseline"]["on"]["ttft_ns"]
    assert page.get_by_text(f"{1 / change['ratio']:.2f} x as fast").count() > 0


def test_back_leads_to_the_page_before(page: Page, address: str) -> None:
    page.goto(f"{address}/?capture=dense")
    settled(page)
    page.locator("[data-testid=stSidebarNav] a[href$='/timeline']").click()
    page.wait_for_function(f"(({SPAN})() ?? 0) > 0")
    page.wait_for_function("location.search.includes('view=')")
    page.locator("[data-testid=stSidebarNav] a[href$='/sweep']").click()
    page.get_by_role("heading", level=1, name="At which sizes").wait_for()
    settled(page)
    page.go_back()
    page.wait_for_url(re.compile("/timeline"))
    page.locator(".timeline canvas").wait_for()
    page.go_back()
    page.get_by_role("heading", level=1, name="Prefetch made").wait_for()
    assert "capture=dense" in address_of(page)


def test_a_click_on_the_sweeps_grid_chooses_the_cell(page: Page, address: str, root: Path) -> None:
    if not (root / "example").is_dir():
        pytest.skip("traces/example is not there")
    watch = Watch(page)
    page.goto(f"{address}/sweep?capture=example")
    settled(page)
    assert "ub128" in address_of(page)
    grid = page.locator("[data-testid=stPlotlyChart]").first
    place = grid.locator(".textpoint").first  # of ubatch 32
    place.wait_for()
    box = place.bounding_box()
    assert box is not None
    beside = (box["x"] - 60, box["y"] + box["height"] / 2)  # in its place, not on its point
    page.mouse.move(*beside)
    page.mouse.click(*beside)
    page.wait_for_function("location.search.includes('ub32')")
    settled(page)
    assert page.get_by_role("combobox", name=re.compile("Cell|Ubatch")).first.input_value().endswith("32")
    watch.check()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_have_names_headings_in_order_and_text_that_can_be_read(
    browser: Browser, address: str, theme: Literal["light", "dark"]
) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=theme)
    page = context.new_page()
    pages = (("", "Overview"), ("timeline", "Timeline"), ("sweep", "Sweep"), ("layers", "Layers"), ("memory", "Memory"))
    for path, name in pages:
        page.goto(f"{address}/{path}?capture=dense")
        settled(page)
        assert page.title() == f"{name} · hprof"
        levels = [int(tag[1]) for tag in page.evaluate(_HEADINGS)]
        assert levels[0] == 1
        assert all(below - above <= 1 for above, below in pairwise(levels)), f"{path}: {levels}"
        if path != "timeline":
            page.locator(".js-plotly-plot .xtick").first.wait_for(state="attached")
        faint = page.evaluate(_CONTRASTS)
        assert faint
        assert min(faint.values()) >= 4.5, f"{path} in {theme}: {faint}"
    context.close()


_HEADINGS = (
    "[...document.querySelectorAll('[data-testid=stMain] :is(h1, h2, h3, h4, h5, h6)')].map((one) => one.tagName)"
)
# The contrast of captions and of the axes' numbers with the page, their opacity counted in.
_CONTRASTS = """() => {
  const numbers = (colour) => (colour.match(/[\\d.]+/g) ?? []).map(Number);
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = numbers(getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor).slice(0, 3);
  const axes = '.xtick text, .ytick text, .legendtext, .annotation-text', found = {};
  const texts = `[data-testid=stCaptionContainer] p, ${axes}`;
  for (const one of document.querySelectorAll(texts)) {
    const style = getComputedStyle(one), isSvg = one instanceof SVGElement;
    const [r, g, b, own = 1] = numbers(isSvg ? style.fill : style.color);
    let alpha = own * (isSvg ? Number(style.fillOpacity) : 1);
    for (let at = one; at && at !== document.body; at = at.parentElement) alpha *= Number(getComputedStyle(at).opacity);
    const seen = [r, g, b].map((v, i) => v * alpha + ground[i] * (1 - alpha));
    const [high, low] = [luminance(seen), luminance(ground)].sort((a, b) => b - a);
    found[`${one.textContent.slice(0, 30)} (${one.tagName})`] = (high + 0.05) / (low + 0.05);
  }
  return found;
}"""


def test_a_phone_reaches_arms_and_sizes_and_no_page_is_wider_than_it(browser: Browser, address: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    for path in ("", "timeline", "sweep"):
        page.goto(f"{address}/{path}?capture=dense")
        settled(page)
        wide = page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth")
        assert wide <= 390, path
        if not path:
            buttons = page.locator(".st-key-arms-strip button:visible")
            widths = buttons.evaluate_all("all => all.map(one => one.getBoundingClientRect().width)")
            assert min(widths) > 300, "each fills the line"
    bars = page.locator(".modebar-container")
    assert bars.count()
    assert not bars.first.is_visible(), "it would lie over the chart"
    page.locator("[data-testid=stExpandSidebarButton]").tap()
    arm = page.get_by_role("combobox", name=re.compile("Arm A"))
    arm.wait_for()
    assert arm.is_visible()
    context.close()


def test_a_view_can_be_sent_to_somebody(page: Page, address: str, browser: Browser) -> None:
    page.goto(f"{address}/timeline?capture=dense&a=on&b=off&view=100000~300000&align=ubatch:1")
    settled(page)
    page.locator(".timeline canvas").wait_for()
    page.wait_for_function(f"(({SPAN})()) === 200000")
    assert page.locator(".timeline .ubatch").input_value() == "1"
    canvas = page.locator(".timeline canvas")
    canvas.click(position={"x": 400, "y": 10})
    page.keyboard.press("w")
    page.wait_for_function("!location.search.includes('100000')")
    link = address_of(page)
    assert "a=on" in link
    assert "align=ubatch" in link
    other = browser.new_page()
    other.goto(link)
    settled(other)
    other.locator(".timeline canvas").wait_for()
    other.wait_for_function(f"(({SPAN})()) === {span(page)}")
    assert other.get_by_role("combobox", name=re.compile("Arm A")).input_value() == "on (prefetch)"
    other.close()


def test_a_table_can_be_downloaded(page: Page, address: str, tmp_path: Path) -> None:
    page.goto(f"{address}/?capture=dense")
    settled(page)
    with page.expect_download() as started:
        page.locator("[data-testid=stDownloadButton] button:visible").filter(has_text="CSV").first.click()
    rows = list(csv.reader(Path(started.value.path()).read_text().splitlines()))
    assert len(rows) > 2
    with page.expect_download() as started:
        page.get_by_role("button", name="Report, JSON").click()
    assert orjson.loads(Path(started.value.path()).read_bytes())["schema"] == 1


def test_uploads_become_arms_and_what_hprof_import_says_is_shown(
    page: Page, address: str, root: Path, tmp_path: Path
) -> None:
    names = ("../../3.1.2_off run.sqlite", "on.sqlite")
    traces = [
        write_export(tmp_path / "x.sqlite", {KERNEL: [kernel(10, end)], MEMCPY: [copy(0, 15, streamId=8)]}).read_bytes()
        for end in (40, 20)
    ]
    watch = Watch(page)
    page.goto(f"{address}/import")
    settled(page)
    upload = page.locator("input[type=file]")
    upload.set_input_files({"name": "x.sqlite", "mimeType": "application/x-sqlite3", "buffer": b"not a trace"})
    page.get_by_role("button", name="Import", exact=True).click()
    error = page.locator("[data-testid=stAlert]").filter(has_text="is no trace that hprof knows")
    error.wait_for(timeout=60_000)
    assert "x.sqlite is no trace" in error.inner_text(), "no folder of the server"
    page.goto(f"{address}/import")
    settled(page)
    upload.set_input_files(
        [
            {"name": name, "mimeType": "application/x-sqlite3", "buffer": trace}
            for name, trace in zip(names, traces, strict=True)
        ]
    )
    page.locator("[data-testid=stTextInput]").nth(1).wait_for()
    labels = [box.get_attribute("aria-label") or "" for box in page.locator("[data-testid=stTextInput] input").all()]
    assert labels[1] == "on.sqlite"
    assert labels[0].endswith("3.1.2_off run.sqlite"), "a screen reader hears no backslashes"
    page.get_by_role("button", name="Import", exact=True).click()
    page.get_by_text("Imported as 3.1.2_off-run.").wait_for(timeout=60_000)
    settled(page)
    summary = page.locator("[data-testid=stCode]").inner_text()
    for said in (
        "Imported from Nsight Systems",
        "as fast as 3.1.2_off-run",
        "1 of the 6 processes",
        "hprof report 3.1.2_off-run --all",
    ):
        assert said in summary
    assert str(root) not in summary
    assert (root / "3.1.2_off-run" / "manifest.json").is_file()
    page.get_by_role("link", name="Overview of it").click()
    page.get_by_role("heading", level=1, name="The arm on against 3.1.2_off-run").wait_for(timeout=60_000)
    assert "capture=3.1.2_off-run" in address_of(page)
    watch.check()


def test_hostile_names_do_nothing(page: Page, address: str) -> None:
    watch = Watch(page)
    page.on("dialog", lambda dialog: watch.problems.append("a script of the capture ran"))
    for path in PATHS[:6]:
        page.goto(f"{address}/{path}?capture=bad")
        settled(page)
        assert page.locator("[data-testid=stMain] img[src=x]").count() == 0
        watch.check()
    page.goto(f"{address}/?capture=../../../etc/passwd&a=%3Cscript%3E&cell=../..")
    settled(page)
    watch.check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_and_a_phone(browser: Browser, address: str, scheme: str) -> None:
    phone = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page = phone.new_page()
    watch = Watch(page)
    for path in ("", "timeline", "sweep", "memory"):
        page.goto(f"{address}/{path}?capture=dense")
        settled(page)
        background = page.evaluate("getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (scheme == "light")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        watch.check()
    page.goto(f"{address}/?capture=dense")
    settled(page)
    page.get_by_role("button", name="Swap A and B").click()  # in reach without the sidebar
    page.get_by_role("heading", level=1, name="Copying in line made").wait_for()
    phone.close()


def test_the_answer_is_above_the_fold(browser: Browser, address: str, root: Path) -> None:
    """Verdict, arms, cards with their lines, and both arms' copying and computing, on a laptop's screen."""
    if not (root / "example-sweep").is_dir():
        pytest.skip("traces/example-sweep is not there")
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(f"{address}/?capture=example-sweep")
    settled(page)
    page.locator(".js-plotly-plot .xtick").first.wait_for(state="attached", timeout=60_000)
    wanted = (
        "h1",
        ".st-key-arms-strip",
        "[data-testid=stMetric] >> nth=2",
        ".js-plotly-plot >> nth=0",
        "img[alt*=times]",
    )
    for place in wanted:
        box = page.locator(place).first.bounding_box()
        assert box is not None, place
        assert box["y"] + box["height"] <= 900, place
    context.close()


def test_a_faint_page_says_why(page: Page, address: str) -> None:
    page.goto(f"{address}/?capture=dense")
    settled(page)
    opacities = {
        name: page.locator(f"[data-testid=stSidebarNav] a[href$='/{name}']").evaluate(
            "(a) => getComputedStyle(a).opacity"
        )
        for name in ("selective", "layers")
    }
    assert opacities == {"selective": "0.5", "layers": "1"}
    page.locator("[data-testid=stSidebarNav] a[href$='/selective']").click()
    page.get_by_text("No router's choices were recorded").wait_for()
