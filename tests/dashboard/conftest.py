"""A browser, and a dashboard over captures of each kind that it looks at."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hprof
from tests.dashboard.browser import served
from tests.dashboard.test_hostile import hostile
from tests.profiler import makers
from tests.support import ROOT, chromium_path

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium_path()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captures")
    for name in ("example", "example-sweep"):
        if (ROOT / "traces" / name).is_dir():
            shutil.copytree(ROOT / "traces" / name, folder / name)
    makers.dense_off_on(folder / "dense")
    hostile(folder / "bad")
    makers.one_trace(folder / "one-trace")
    faulty = ["--record-ordering", "--inject", "drop-wait", "-o", str(folder / "disorder")]
    hprof.main(["run", "-m", "tiny-dense", "--device", "sim", "--arms", "off,on", "-p", "64", "-ub", "32", *faulty])
    return folder


@pytest.fixture(scope="module")
def address(browser: Browser, root: Path) -> Iterator[str]:
    with served(root) as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    yield context.new_page()
    context.close()
