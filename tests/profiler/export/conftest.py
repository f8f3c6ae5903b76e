"""A real browser for the tests of what hprof writes for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import chromium_path


@pytest.fixture(scope="package")
def chromium() -> Iterator[object]:
    """A headless Chromium (Debian's `apt-get install chromium`), driven by Playwright."""
    path = chromium_path()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
