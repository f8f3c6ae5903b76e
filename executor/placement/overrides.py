"""llama.cpp's `-ot REGEX=BUFFER;…`: its text, and which tensors it sends to host memory.

A user's pattern is matched under a time limit: nested repetitions could take years.
"""

from __future__ import annotations

import difflib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from executor.errors import HprofError
from executor.model import layer_of, short_name_of
from executor.units import shortened

DEFAULT_OVERRIDE: Final = "ffn_(gate|up|down).*=CPU"
DEFAULT_OF_EXPERTS: Final = "ffn_(gate|up|down)_exps.*=CPU"  # what -ncmoe moves of all layers
_HOST_BUFFERS: Final = ("CPU", "HOST")
_OUTPUT: Final = "output.weight"  # a file with tied embeddings has none, and people name it all the same
_MAX_PATTERN: Final = 4096  # characters; a pattern that lists every layer has some hundreds
_PATTERN_S: Final = 2.0  # for all names together: nested repetitions could take years


def default_override(names: Iterable[str]) -> str:
    """What goes to host memory where nothing is said: all experts, as users of `-ncmoe` mean it, so that shared experts
    and dense first layers stay resident; of a model without experts every FFN; of one without FFNs nothing.
    """
    names = list(names)
    if any("_exps." in name for name in names):
        return DEFAULT_OF_EXPERTS
    return DEFAULT_OVERRIDE if any(".ffn_" in name for name in names) else ""


@dataclass(frozen=True, slots=True)
class Override:
    """One `REGEX=BUFFER` of `-ot`; the first that matches a tensor's name decides."""

    pattern: re.Pattern[str]
    buffer: str  # upper case: CPU, HOST, GPU, CUDA1
    written: str  # the pattern as it was typed

    @property
    def is_host(self) -> bool:
        """Whether it sends weights to host memory."""
        return self.buffer in _HOST_BUFFERS

    @property
    def device(self) -> int | None:
        """The number in CUDA1; None for host memory, and for GPU, which is the layer's own device."""
        number = re.search(r"\d+$", self.buffer)
        return int(number[0]) if number else None

    def matches(self, names: Iterable[str]) -> list[str]:
        """The names that the pattern is found in. Raises HprofError where that takes too long."""
        return self._those(names, self.pattern.search)

    def names_wholly(self, names: Iterable[str]) -> list[str]:
        """The names that the pattern spells from end to end, with `.weight` or without."""
        return self._those(names, lambda name: self.pattern.fullmatch(name) or self.pattern.fullmatch(_stem(name)))

    def _those(self, names: Iterable[str], fits: Callable[[str], object]) -> list[str]:
        try:
            with regex_timeout(_PATTERN_S):
                return [name for name in names if fits(name)]
        except TimeoutError:
            raise HprofError(
                f"-ot '{_short(self.written)}' takes longer than {_PATTERN_S:g} s to match the model's "
                "names: write it without a repetition inside a repetition, as (a+)+"
            ) from None


def _stem(name: str) -> str:
    return name.removesuffix(".weight")


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
    if not re.fullmatch(r"CPU|HOST|(GPU|CUDA)\d{0,3}", buffer.upper()):
        raise HprofError(
            f"-ot '{text}' names the buffer '{buffer}': use CPU for host memory, GPU for the layer's device, or CUDA0"
        )
    if len(pattern) > _MAX_PATTERN:
        raise HprofError(f"-ot '{_short(pattern)}' has {len(pattern):,} characters: give {_MAX_PATTERN:,} at most")
    try:
        compiled = re.compile(_without_posix_classes(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise HprofError(f"-ot '{_short(pattern)}' is not a regular expression ({error}): check its brackets") from None
    return Override(compiled, buffer.upper(), pattern)


_BRACKETS: Final = re.compile(r"\\.|\[\^?\]?(?:\[:\w+:\]|\\.|[^\]\\])*\]")
_POSIX_CLASS: Final = re.compile(r"\[:(\w+):\]")
_POSIX_CLASSES: Final = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": r" \t",
    "digit": "0-9",
    "lower": "a-z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\s",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
    "d": "0-9",  # std::regex has these three beside POSIX's
    "s": r"\s",
    "w": r"\w",
}


def _without_posix_classes(pattern: str) -> str:
    """The pattern with `[[:digit:]]`, which std::regex knows and `re` does not, as `[0-9]`."""

    def plain(match: re.Match[str]) -> str:
        if match[1] not in _POSIX_CLASSES:
            raise HprofError(
                f"-ot '{_short(pattern)}': there is no class [:{match[1]}:]; known are [:digit:], [:alpha:]"
            )
        return _POSIX_CLASSES[match[1]]

    def inside(match: re.Match[str]) -> str:
        return match[0][0] + _POSIX_CLASS.sub(plain, match[0][1:])

    return _BRACKETS.sub(inside, pattern) if "[:" in pattern else pattern


@dataclass(frozen=True, slots=True)
class Overridden:
    """What the overrides of one configuration decide: movable name -> whether it goes to host memory."""

    is_host: Mapping[str, bool]
    notes: tuple[str, ...]  # sentences on overrides that do other than they seem to


def overridden(
    tensors: Iterable[str], movable: Sequence[str], overrides: Iterable[Override], device_of: Sequence[int] = ()
) -> Overridden:
    """What the overrides say of the movable names; names that none matches are left out.

    `tensors` are all names; `device_of` gives each layer's device, all 0 where it is empty. The first override that
    matches a name decides. Raises HprofError for one that matches no movable name, or sends one to another device
    than its layer's.
    """
    is_host: dict[str, bool] = {}
    notes: list[str] = []
    can_move = set(movable)
    fixed = [name for name in dict.fromkeys([*tensors, _OUTPUT]) if name not in can_move]
    for override in overrides:
        matched = override.matches(movable)
        if not matched:
            raise _no_match(override, fixed, movable)
        open_ = [name for name in matched if name not in is_host]
        _check_device(override, open_, device_of)
        notes += _notes(override, matched, open_, fixed)
        is_host |= dict.fromkeys(open_, override.is_host)
    return Overridden(is_host, tuple(notes))


def _check_device(override: Override, names: Sequence[str], device_of: Sequence[int]) -> None:
    """Refuse a device that is not there, or that the layer of a weight does not run on."""
    device, n_devices = override.device, max(device_of, default=0) + 1
    if device is None:
        return
    written = f"-ot '{_short(override.written)}={override.buffer}'"
    if device >= n_devices:
        there = "device 0 alone" if n_devices == 1 else f"devices 0 to {n_devices - 1}"
        raise HprofError(f"{written}: this run has {there}; give --n-devices {device + 1}, or write =GPU or =CPU")
    for name in names:
        layer = layer_of(name) or 0
        if device_of and device_of[layer] != device:
            raise HprofError(
                f"{written} sends {name} to device {device}, but layer {layer} runs on device {device_of[layer]}, and "
                "its weights with it: write =GPU, or move the layer with -ts"
            )


def _notes(override: Override, matched: Sequence[str], open_: Sequence[str], fixed: Sequence[str]) -> Iterator[str]:
    written = f"-ot '{_short(override.written)}={override.buffer}'"
    if not open_:
        yield f"{written} changes nothing: overrides before it decide all {len(matched)} weights that it matches."
    meant = override.names_wholly(fixed)
    if open_ and meant and not override.names_wholly(matched):
        others = f" and {len(open_) - 1} more" if len(open_) > 1 else ""
        yield f"{written} moves {open_[0]}{others}, and not {meant[0]}, which always stays resident."


def _no_match(override: Override, fixed: Sequence[str], movable: Sequence[str]) -> HprofError:
    spelled = _short(override.written)
    stays = override.matches(fixed)
    if stays:
        return HprofError(
            f"-ot '{spelled}' matches {stays[0]} and no weight that can move: norms, biases, routers, the "
            "embedding and the output stay resident"
        )
    near = ", ".join(_near(spelled, movable))
    return HprofError(f"-ot '{spelled}' matches no weight of the model; near ones are {near}")


def _short(pattern: str) -> str:
    return shortened(pattern, 201)


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
