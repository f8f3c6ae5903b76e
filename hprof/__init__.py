"""The public face of hprof: `import hprof; hprof.open(path)`, `python -m hprof`, and the `hprof` command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hprof.command_line import foreign_package, main

if TYPE_CHECKING:
    from os import PathLike

    from profiler.opened import OpenedCapture

    __version__: str

__all__ = ["__version__", "main", "open"]


def open(path: str | PathLike[str]) -> OpenedCapture:  # noqa: A001 - `hprof.open` is the name users expect
    """Open the capture at `path` (a folder or any fsspec URL); tables and metrics come as pandas frames.

    Raises `executor.errors.HprofError` where there is no capture that can be read.
    """
    if (problem := foreign_package()) is not None:
        raise ImportError(problem)
    from profiler.opened import OpenedCapture

    return OpenedCapture.open(path)


def __getattr__(name: str) -> Any:
    if name != "__version__":
        raise AttributeError(f"module 'hprof' has no attribute {name!r}")
    # Read when asked for: `executor` may be another project's package, which `foreign_package` must see first.
    from executor.version import __version__

    return __version__
