"""`hprof.range`: names a step of anybody's code, so that recordings know which layer its work belongs to."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any, Final, TypeVar

import torch

from executor.errors import HprofError
from executor.tracing.nvtx_names import StepName, format_step
from executor.tracing.pass_trace import compute_range
from profiler.plain_text import readable

_NUMBERED: Final = re.compile(r"(?P<what>.*?\S)[ ._]?(?<!\d)(?P<layer>\d{1,6})")
_MAX_CHARS: Final = 200


_Function = TypeVar("_Function", bound=Callable[..., Any])


def is_suspended(function: object) -> bool:
    """Whether calling it only makes a coroutine or a generator, and runs nothing."""
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_one(function) for is_one in kinds)


class _OpenRanges(threading.local):
    """Those that this thread has entered and not left."""

    def __init__(self) -> None:
        self.recorded: list[torch.profiler.record_function] = []


class NamedRange(ContextDecorator):
    """Around a step, as a decorator or in a `with`: an NVTX range of domain `hprof`, and torch's record_function.

    It may be used many times, inside itself, and by several threads.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name.strip() or len(name) > _MAX_CHARS:
            raise HprofError(
                f"hprof.range({repr(name)[:40]}): a name has 1 to {_MAX_CHARS} characters, such as 'ffn 3'."
            )
        self._step = _step_of(readable(name.strip()))
        self._open = _OpenRanges()

    def __call__(self, function: _Function) -> _Function:
        """The function inside the range. Raises HprofError for one whose body does not run when it is called."""
        if is_suspended(function):
            raise HprofError(
                f"hprof.range: {function.__qualname__} is a coroutine or generator, whose body runs later than its "
                "call; write `with hprof.range(...)` inside it."
            )
        return super().__call__(function)

    def __enter__(self) -> None:
        recorded = torch.profiler.record_function(format_step(self._step))
        compute_range(self._step.layer, self._step.what).__enter__()
        recorded.__enter__()
        self._open.recorded.append(recorded)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.recorded.pop().__exit__(kind, error, trace)
        compute_range(self._step.layer, self._step.what).__exit__(kind, error, trace)


def _step_of(name: str) -> StepName:
    """`ffn 3` is step `ffn` of layer 3; a name without a number at its end belongs to no layer."""
    found = _NUMBERED.fullmatch(name)
    return StepName(int(found["layer"]), found["what"]) if found else StepName(None, name)
