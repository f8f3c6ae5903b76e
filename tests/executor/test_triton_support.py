"""Whether Triton's kernels can be compiled, on machines that lack something."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from executor.triton_support import has_triton


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """`has_triton` looks again, at a machine with a C compiler."""
    monkeypatch.setenv("CC", "cc")
    has_triton.cache_clear()
    yield monkeypatch
    has_triton.cache_clear()


def test_none_without_triton(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(importlib.util, "find_spec", lambda name: None)
    assert not has_triton()


@pytest.mark.parametrize(("version", "enough"), [("3.2.0", False), ("3.3.1", True), ("4.0.0+git1a2b", True)])
def test_triton_must_be_new_enough(fresh: pytest.MonkeyPatch, version: str, enough: bool) -> None:
    triton = ModuleType("triton")
    triton.__dict__.update(__version__=version, __spec__=ModuleSpec("triton", None))
    fresh.setitem(sys.modules, "triton", triton)
    assert has_triton() is enough


def test_none_without_a_compiler(fresh: pytest.MonkeyPatch) -> None:
    fresh.delenv("CC")
    fresh.setattr(shutil, "which", lambda name: None)
    assert not has_triton()
