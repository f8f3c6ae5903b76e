"""What holds for every test: no stream worker of the cpu device outlives it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """Fails a test that leaves a session open."""
    before = set(threading.enumerate())
    yield
    leaked = [t.name for t in threading.enumerate() if t not in before and t.name.startswith("hprof-")]
    assert not leaked, f"stream workers still run: {leaked}; close the session"
