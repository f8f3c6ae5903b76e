"""A dashboard that runs, and a chromium that looks at it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

# On a deep link Streamlit's front end asks below the page's own address first, and goes on when it gets a 404.
_EXPECTED: Final = ("/_stcore/health", "/_stcore/host-config")


def unused_port() -> int:
    """A port of this machine that the system picks, so that tests that run side by side get different ones."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(root: Path) -> Iterator[str]:
    """`hprof dashboard` over the captures of `root`; gives its address."""
    with serving(root) as (address, _):
        yield address


@contextmanager
def serving(root: Path) -> Iterator[tuple[str, int]]:
    """The same, with the number of the server's process."""
    port = unused_port()
    command = [sys.executable, "-m", "hprof", "dashboard", str(root), "--no-browser", "--port", str(port)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_up(f"http://127.0.0.1:{port}/_stcore/health", server)
        yield f"http://127.0.0.1:{port}", server.pid
        assert server.poll() is None, "the server died"
    finally:
        server.terminate()
        server.wait(20)


def wait_until_up(address: str, server: subprocess.Popen[bytes]) -> None:
    """Until the server answers there; fails the test where it ends, or takes a minute."""
    for _ in range(240):
        assert server.poll() is None, "the server did not start"
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
    pytest.fail("the server did not answer within a minute")


@dataclass
class Watch:
    """What went wrong on a page while it was looked at."""

    page: Page
    problems: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        self.page.on("console", self._console)
        self.page.on("request", self._request)

    def _console(self, message: Any) -> None:
        where = (message.location or {}).get("url", "")
        if message.type == "error" and not where.endswith(_EXPECTED):
            self.problems.append(f"console: {message.text} {where}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "about:")):
            self.outside.append(request.url)

    def check(self) -> None:
        """Fails the test where anything did."""
        assert self.problems == []
        assert self.outside == [], "the page asked for something on the internet"
        assert self.page.locator("[data-testid=stException]").count() == 0


def settled(page: Page) -> None:
    """Waits until the script has run and nothing is being drawn anew."""
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=60_000)
    page.wait_for_selector("[data-testid=stMain] h1", timeout=60_000)
    page.wait_for_function("document.querySelectorAll('[data-testid=stSkeleton]').length === 0", timeout=60_000)


def address_of(page: Page) -> str:
    """Where the page is now; Playwright's own `url` does not see `history.replaceState`."""
    return str(page.evaluate("location.href"))


SPAN = """() => {
  const root = document.querySelector('[data-testid=stBidiComponentIsolated]')?.shadowRoot?.querySelector('.timeline');
  const [from, to] = (root?.dataset.view ?? '0~0').split('~').map(Number);
  return to - from;
}"""
"""JavaScript: the length of what the timeline shows, in ns; 0 before it shows anything."""


def span(page: Page) -> int:
    """The length of what the timeline of `page` shows, in ns."""
    view = page.locator(".timeline").get_attribute("data-view")
    assert view is not None
    start, end = map(int, view.split("~"))
    return end - start
