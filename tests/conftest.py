"""What holds for every test: the same examples each time, and no stream worker of the cpu device outlives it.

Property tests draw their examples from a fixed seed, so that a change alone can turn them red. New ones:
`pytest --hypothesis-profile=explore tests/profiler/importers`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """Fails a test that leaves a session open."""
    before = set(threading.enumerate())
    yield
    leaked = [t.name for t in threading.enumerate() if t not in before and t.name.startswith("hprof-")]
    assert not leaked, f"stream workers still run: {leaked}; close the session"
