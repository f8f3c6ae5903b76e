"""Keeps Python's garbage collector out of what is timed, and out of where it finds nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Nothing is collected inside."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage now, and not while a pass is timed."""
    gc.collect()
    with paused():
        yield


@contextmanager
def sparing_what_is_there() -> Iterator[None]:
    """Inside, collections look at newer objects alone: those of a process with torch take 0.2 s each time.

    A program that froze its objects itself has spared them already, and they stay so.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
