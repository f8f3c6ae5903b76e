"""Memory that ran out, in the many ways that torch says it, told as one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal

import torch

from executor.errors import HprofError
from executor.units import format_bytes

Memory = Literal["device", "host"]

_HOST_WORDS: Final = ("can't allocate memory", "cannot allocate memory", "not enough memory")
_DEVICE_WORDS: Final = ("cuda error: out of memory", "cuda out of memory", "_status_alloc_failed")
_SIZES: Final = re.compile(r"Tried to allocate ([\d.]+ \w+)\..*?of which ([\d.]+ \w+) is free", re.DOTALL)
_HOST_SIZE: Final = re.compile(r"tried to allocate (\d+) bytes")


def what_ran_out(error: BaseException | None) -> Memory | None:
    """Which memory ran out, if that is what stands behind an error.

    An error may hide the one that caused it: a capture fails once more at its end where memory ran out in it.
    """
    return next((memory for link in _chain(error) if (memory := _said(link)) is not None), None)


@contextmanager
def explain_oom(doing: str, advice: Callable[[Memory], str]) -> Iterator[None]:
    """Turns an error of memory inside into an HprofError: what was `doing`, how much was asked, and the `advice`."""
    try:
        yield
    except HprofError:
        raise
    except Exception as error:
        memory = what_ran_out(error)
        if memory is None:
            raise
        raise HprofError(f"{memory} memory ran out while {doing}{_sizes(error)}: {advice(memory)}") from None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _said(error: BaseException) -> Memory | None:
    if isinstance(error, torch.OutOfMemoryError):
        return "device"
    if isinstance(error, MemoryError):
        return "host"
    if not isinstance(error, RuntimeError):
        return None
    text = str(error).lower()
    if any(words in text for words in _HOST_WORDS):
        return "host"
    return "device" if any(words in text for words in _DEVICE_WORDS) else None


def _sizes(error: BaseException) -> str:
    """What was asked for, and what was free, where the error says it."""
    text = " ".join(map(str, _chain(error)))
    if (match := _SIZES.search(text)) is not None:
        return f" ({match[1]} more were asked for and {match[2]} are free)"
    if (match := _HOST_SIZE.search(text)) is not None:
        return f" ({format_bytes(int(match[1]))} more were asked for)"
    return ""
