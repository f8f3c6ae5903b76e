"""What holds for every test: the same examples each time, Ctrl-C and SIGTERM heard, no wait for the disk, the same main
module after it, and no stream worker of the cpu device that outlives it.

Property tests draw their examples from a fixed seed, so that a change alone can turn them red. New ones:
`pytest --hypothesis-profile=explore tests/profiler/importers`.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ["HPROF_URL_SCHEMES"] = "memory, needs-credentials"  # addresses that only tests have

# how long drawing takes is the load of the machine
settings.register_profile("fixed", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, derandomize=False, max_examples=1_000)
settings.load_profile("fixed")


def pytest_configure() -> None:
    """Hear Ctrl-C and SIGTERM again where a shell ignores them for its background jobs: tests send both to children."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def no_waits_for_the_disk() -> Iterator[None]:
    """What tests write need not outlive the machine: an fsync takes 1 ms, and a run makes two hundred of them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_walks_over_what_stays() -> None:
    """Modules and tests stay to the end: a look for garbage among them takes 0.3 s, and runs look before each pass."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_main_module() -> Iterator[None]:
    """Streamlit puts a page in the place of the main module, which processes that a later test spawns would run."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """Fails a test that leaves a session open."""
    before = set(threading.enumerate())
    yield
    leaked = [t.name for t in threading.enumerate() if t not in before and t.name.startswith("hprof-")]
    assert not leaked, f"stream workers still run: {leaked}; close the session"


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own, without the user's probe."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """That multiply stored bytes on a GPU: whether there are any depends on the machine."""
    from executor.memory import scratch

    monkeypatch.setattr(scratch, "reads_stored", lambda quant, n_rows, dtype: False)


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without one. With one, hosts multiply weights as they are stored and keep nothing beside them."""
    from executor.host import stored

    monkeypatch.setattr(stored, "is_available", lambda: False)
