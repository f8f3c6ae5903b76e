"""When garbage is collected, and that a program's own choice is left as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from profiler.collection import no_collection, paused, sparing_what_is_there


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    """As in a program that never heard of it; tests themselves run frozen."""
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    if was_frozen:
        gc.freeze()


class _Circle:
    """Garbage that reference counts do not find."""

    def __init__(self, alive: list[object]) -> None:
        self.itself, self._alive = self, alive
        alive.append(None)

    def __del__(self) -> None:
        self._alive.pop()


def test_garbage_goes_before_what_is_timed_and_not_during_it() -> None:
    alive: list[object] = []
    _Circle(alive)
    with no_collection():
        assert alive == []
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_program_that_collects_nothing_goes_on_so() -> None:
    gc.disable()
    try:
        with paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_is_there_is_spared_and_newer_garbage_found() -> None:
    alive: list[object] = []
    with sparing_what_is_there():
        assert gc.get_freeze_count() > 0
        _Circle(alive)
        gc.collect()
        assert alive == []
    assert gc.get_freeze_count() == 0


def test_what_a_program_froze_itself_stays_frozen() -> None:
    gc.freeze()
    with sparing_what_is_there():
        pass
    assert gc.get_freeze_count() > 0
