"""The public face of hprof: `hprof.open(path)`, `with hprof.check():`, `python -m hprof`, and the `hprof` command."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hprof.command_line import foreign_package, main

if TYPE_CHECKING:
    from os import PathLike

    from executor.errors import HprofError
    from executor.version import __version__
    from profiler.opened import OpenedCapture
    from profiler.watching.checking import Check

__all__ = ["HprofError", "__version__", "check", "main", "open"]

# Read when asked for: `executor` may be another project's package, which is to be told in a sentence.
_LATE = {"HprofError": "executor.errors", "__version__": "executor.version"}


def open(path: str | PathLike[str]) -> OpenedCapture:  # noqa: A001 - `hprof.open` is the name users expect
    """Open the capture at `path` (a folder or any fsspec URL); tables and metrics come as pandas frames.

    Raises `hprof.HprofError` where there is no capture that can be read.
    """
    _refuse_foreign_packages()
    from profiler.opened import OpenedCapture

    return OpenedCapture.open(path)


def check(*, raises: bool = True) -> Check:
    """Watch the CUDA work that this thread issues inside a `with`, and prove its order at the end (docs/checking.md).

    raises: whether `hprof.HprofError` with the first finding ends it, or only its `result` tells. Raises HprofError
    where torch sees no GPU.
    """
    _refuse_foreign_packages()
    from profiler.watching.checking import Check

    return Check(raises=raises)


if not TYPE_CHECKING:  # for a type checker, a module with __getattr__ has every attribute

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module 'hprof' has no attribute {name!r}")
        _refuse_foreign_packages()
        return getattr(importlib.import_module(_LATE[name]), name)


def _refuse_foreign_packages() -> None:
    if (problem := foreign_package()) is not None:
        raise ImportError(problem)
