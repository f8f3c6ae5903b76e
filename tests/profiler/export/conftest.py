"""A real browser for the tests of what hprof writes for one; skipped, with the reason, where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    """A headless Chromium (Debian's `apt-get install chromium`), driven by Playwright."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no chromium on PATH: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
