"""llama.cpp's `-ot REGEX=BUFFER;…`: its text, and which tensors it sends to host memory.

A user's pattern is matched under a time limit: nested repetitions could take years.
"""

from __future__ import annotations

import difflib
import re
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from executor.errors import HprofError
from executor.model import short_name_of

DEFAULT_OVERRIDE: Final = "ffn_(gate|up|down).*=CPU"
_HOST_BUFFERS: Final = ("CPU", "HOST")
_MAX_PATTERN: Final = 4096  # characters; a pattern that lists every layer has some hundreds
_PATTERN_S: Final = 2.0  # for all names together: nested repetitions could take years


@dataclass(frozen=True, slots=True)
class Override:
    """One `REGEX=BUFFER` of `-ot`; the first that matches a tensor's name decides."""

    pattern: re.Pattern[str]
    host: bool

    def matches(self, names: Iterable[str]) -> list[str]:
        """The names that the pattern is found in. Raises HprofError where that takes too long."""
        try:
            with regex_timeout(_PATTERN_S):
                return [name for name in names if self.pattern.search(name)]
        except TimeoutError:
            raise HprofError(
                f"-ot '{_short(self.pattern.pattern)}' takes longer than {_PATTERN_S:g} s to match the model's "
                "names: write it without a repetition inside a repetition, as (a+)+"
            ) from None


def split_configurations(text: str) -> list[str]:
    """Cut llama-bench's `-ot` value: `,` separates configurations, `;` the overrides inside one."""
    return [part.strip() for part in text.split(",")]


def parse_overrides(text: str) -> list[Override]:
    """Parse `REGEX=BUFFER;REGEX=BUFFER`; an empty text means no override."""
    return [_parse_override(part.strip()) for part in text.split(";") if part.strip()]


def _parse_override(text: str) -> Override:
    pattern, equals, buffer = text.rpartition("=")
    if not equals or not pattern:
        lacks = "no '='" if not equals else "no pattern before its '='"
        raise HprofError(
            f"-ot '{text}' has {lacks}: write REGEX=CPU, for example '{DEFAULT_OVERRIDE}' "
            "(',' separates configurations and cannot be part of one)"
        )
    if not re.fullmatch(r"CPU|HOST|GPU\d*|CUDA\d+", buffer.upper()):
        raise HprofError(f"-ot '{text}' names the buffer '{buffer}': use CPU for host memory, or GPU")
    if len(pattern) > _MAX_PATTERN:
        raise HprofError(f"-ot '{_short(pattern)}' has {len(pattern):,} characters: give {_MAX_PATTERN:,} at most")
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise HprofError(f"-ot '{_short(pattern)}' is not a regular expression ({error}): check its brackets") from None
    return Override(compiled, buffer.upper() in _HOST_BUFFERS)


def overridden(tensors: Iterable[str], movable: Sequence[str], overrides: Iterable[Override]) -> dict[str, bool]:
    """Movable name -> whether the overrides send it to host memory; names that none matches are left out.

    `tensors` are all names.

    The first override that matches a name decides. Raises HprofError for one that matches no movable name.
    """
    is_host: dict[str, bool] = {}
    for override in overrides:
        matched = override.matches(movable)
        if not matched:
            raise _no_match(override, tensors, movable)
        for name in matched:
            is_host.setdefault(name, override.host)
    return is_host


def _no_match(override: Override, tensors: Iterable[str], movable: Sequence[str]) -> HprofError:
    spelled = _short(override.pattern.pattern)
    fixed = override.matches(tensors)
    if fixed:
        return HprofError(
            f"-ot '{spelled}' matches {fixed[0]} and no weight that can move: norms, biases, routers, the "
            "embedding and the output stay resident"
        )
    near = ", ".join(_near(spelled, movable))
    return HprofError(f"-ot '{spelled}' matches no weight of the model; near ones are {near}")


def _short(pattern: str) -> str:
    return pattern if len(pattern) <= 200 else f"{pattern[:200]}…"


def _near(pattern: str, names: Iterable[str]) -> list[str]:
    kinds = sorted({short_name_of(name) for name in names})
    literal = re.sub(r"[^a-z_]+", "_", pattern.lower()).strip("_")
    return difflib.get_close_matches(literal, kinds, n=3, cutoff=0.0)


@contextmanager
def regex_timeout(seconds: float) -> Iterator[None]:
    """Raises TimeoutError inside, in the main thread and where the system has timers; `re` looks for signals.

    Elsewhere there is no limit, as nothing can stop `re` there.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    begun_s = time.monotonic()
    handler = signal.signal(signal.SIGALRM, _raise)
    others_s, others_interval_s = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if others_s:  # somebody else's alarm rings when it would have
            left_s = max(others_s - (time.monotonic() - begun_s), 0.001)
            signal.setitimer(signal.ITIMER_REAL, left_s, others_interval_s)


def _raise(_number: int, _frame: object) -> None:
    raise TimeoutError
