"""The public face of hprof: `import hprof`, `python -m hprof`, and the `hprof` command.

`hprof.open` reads a capture; `hprof.ab`, `hprof.record` and `hprof.range` measure PyTorch code, as
docs/measuring-your-code.md shows; `hprof.check` proves the order of its CUDA work.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hprof.command_line import foreign_package, main

if TYPE_CHECKING:
    from os import PathLike

    from executor.errors import HprofError
    from executor.version import __version__
    from profiler.opened import OpenedCapture
    from profiler.recording.in_process import InProcessRecording
    from profiler.recording.ranges import NamedRange
    from profiler.running.ab import AB
    from profiler.watching.checking import Check

__all__ = ["HprofError", "__version__", "ab", "check", "main", "open", "range", "record"]

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


def ab(path: str | PathLike[str], repetitions: int = 6, *, record: bool = True, force: bool = False) -> AB:
    """Measure callables against each other in this process, in turn, and write the capture `path`.

    with hprof.ab("traces/mine", repetitions=6) as ab:
        ab.arm("off", step_without)
        ab.arm("on", step_with)

    They run when the block ends: warm-ups, then `repetitions` calls of each in ABBA blocks, each timed until the
    devices are idle. With `record` each runs once more under torch.profiler, untimed, for `<path>-recorded`.
    Raises `hprof.HprofError` where a capture cannot be written; what an arm raises comes through.
    """
    _refuse_foreign_packages()
    from profiler.running.ab import AB

    return AB(path, repetitions, record=record, force=force)


def record(path: str | PathLike[str], arm: str = "recorded", *, force: bool = False) -> InProcessRecording:
    """Record the PyTorch code inside `with hprof.record("traces/mine", arm="on"):` and write the capture `path`.

    Raises `hprof.HprofError` on entry where the capture cannot be written, or a profiler of torch's runs already.
    """
    _refuse_foreign_packages()
    from profiler.recording.in_process import InProcessRecording

    return InProcessRecording(path, arm, force=force)


def range(name: str) -> NamedRange:  # noqa: A001 - as `hprof.open`
    """Name a step, as `@hprof.range("ffn 3")` or `with hprof.range("ffn 3"):`; a number at the end is its layer."""
    _refuse_foreign_packages()
    from profiler.recording.ranges import NamedRange

    return NamedRange(name)


if not TYPE_CHECKING:  # for a type checker, a module with __getattr__ has every attribute

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module 'hprof' has no attribute {name!r}")
        _refuse_foreign_packages()
        return getattr(importlib.import_module(_LATE[name]), name)


def _refuse_foreign_packages() -> None:
    if (problem := foreign_package()) is not None:
        raise ImportError(problem)
