"""Which way a product is computed: measured once for its shape and number of rows, and kept with the machine.

Two ways may round differently, so one choice holds for all arms and layouts of a run, and for later processes: it is
kept in a file of the user's cache. Where that cannot be written each process measures for itself; processes that add to
one capture agree all the same, as each is told what those before it chose (`agree_on_products`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

import torch

from executor.errors import HprofError
from executor.files import cache_folder, whole_file
from executor.peak_memory import uncounted

Way = Literal["direct", "widened"]
"""Straight from stored bytes; or every weight written in the compute dtype first, then multiplied."""
_Result = TypeVar("_Result")
_TRIES: Final = 7
_ROUNDS: Final = 4  # of so many tries, while other work on the GPU disturbs them
_EQUAL: Final = 1.05
_STEADY: Final = 1.1
_FLUSHED_BYTES: Final = 256 << 20  # written before each one: weights are not in the cache when a layer needs them
_FLUSHES: Final = 16  # about a millisecond, in which the host launches what is measured
_KERNELS: Final = ("direct", "direct_kernels", "direct_rows", "direct_words", "fused", "fused_decoders")


class ProductChoices:
    """The choices of one GPU model, by a product's name, shapes and rows."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Way] = {} if path is None else _read(path)
        self.used: dict[str, Way] = {}
        """What this process asked for."""

    def run(self, key: str, direct: Callable[[], _Result], widened: Callable[[], _Result]) -> _Result:
        """The result of the faster way; both have to be free of side effects, as the first call measures them.

        That waits for the device, and cannot be recorded: a step runs once before it is.
        """
        return direct() if self.way(key, direct, widened) == "direct" else widened()

    def way(self, key: str, direct: Callable[[], object], widened: Callable[[], object]) -> Way:
        """The faster way alone."""
        way = self._known.get(key)
        if way is None:
            times = measured(direct, widened)
            if times is None:
                way = self._known[key] = "direct"  # kept for no later process, which may have more memory
            else:
                way = times.faster
                self._keep({key: way})
        self.used[key] = way
        return way

    def agree(self, ways: Mapping[str, Way]) -> None:
        """Choose as an earlier process did, whose `ways` may not have reached the file; what is in use stays."""
        self._known |= {**ways, **self.used}

    def _keep(self, ways: Mapping[str, Way]) -> None:
        """For later processes too; what another process kept meanwhile stays there."""
        self._known |= ways
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            kept = {**ways, **_read(self._path)}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self._path) as file:
                file.write(json.dumps(kept, indent=1, sort_keys=True).encode())


def choices_for(device: torch.device) -> ProductChoices:
    """The choices of a CUDA device's model."""
    return _choices_of(torch.cuda.get_device_name(device))


@functools.cache
def _choices_of(device_name: str) -> ProductChoices:
    """Another GPU, another version or other kernels: another file."""
    versions = [torch.__version__, importlib.import_module("triton").__version__]
    sources = [(Path(__file__).parent / f"{name}.py").read_bytes() for name in _KERNELS]
    digest = hashlib.sha256(b"".join([device_name.encode(), *(v.encode() for v in versions), *sources])).hexdigest()
    try:
        return ProductChoices(cache_folder() / f"products-{digest[:16]}.json")
    except HprofError:  # a user without a home
        return ProductChoices(None)


def used_products() -> dict[str, Way]:
    """What this process chose so far, on any device."""
    return {key: way for choices in _of_this_machine() for key, way in sorted(choices.used.items())}


def agree_on_products(ways: object) -> None:
    """Let this process choose as others did, whose `used_products` a manifest has; what is none says nothing."""
    for choices in _of_this_machine():
        choices.agree(_ways(ways))


def _of_this_machine() -> list[ProductChoices]:
    """The choices of each model of GPU here."""
    if not torch.cuda.is_available():
        return []
    names = {torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
    return [_choices_of(name) for name in sorted(names)]


def _read(path: Path) -> dict[str, Way]:
    """What an earlier process kept; a file that is none says nothing."""
    try:
        return _ways(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _ways(found: object) -> dict[str, Way]:
    """What of something that was read are choices."""
    if not isinstance(found, dict):
        return {}
    return {str(key): way for key, way in found.items() if way in ("direct", "widened")}


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of each way, tried in turn."""

    direct: Sequence[float]
    widened: Sequence[float]

    @property
    def faster(self) -> Way:
        """By each one's best, which other work on the GPU disturbs least; about equal means direct."""
        return "direct" if min(self.direct) <= _EQUAL * min(self.widened) else "widened"

    @property
    def are_steady(self) -> bool:
        """Whether each way's best was nearly reached again; else something disturbed."""
        return all(sorted(tries)[1] <= _STEADY * min(tries) for tries in (self.direct, self.widened))


def measured(direct: Callable[[], object], widened: Callable[[], object]) -> Times | None:
    """Time both ways in turn on the current stream; None where memory has no room for widened weights."""
    with uncounted():
        try:
            return _timed(direct, widened)
        except torch.OutOfMemoryError:
            return None


def _timed(direct: Callable[[], object], widened: Callable[[], object]) -> Times:
    """For longer where something disturbs."""
    for compute in (direct, widened):
        compute()  # compiles, and lets libraries initialise
    times = Times([], [])
    for _ in range(_ROUNDS):
        tries = [(_milliseconds(direct), _milliseconds(widened)) for _ in range(_TRIES)]
        times = Times([*times.direct, *(one for one, _ in tries)], [*times.widened, *(other for _, other in tries)])
        if times.are_steady:
            break
    return times


def _milliseconds(compute: Callable[[], object]) -> float:
    """One try on the device: weights are not in its cache, and the host is ahead."""
    flushed = torch.empty(_flushed_bytes(), dtype=torch.uint8, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(_FLUSHES):
        flushed.zero_()
    start.record()
    compute()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def _flushed_bytes() -> int:
    """As much as is useful, and never what a nearly full GPU needs for itself."""
    free, _ = torch.cuda.mem_get_info()
    return max(1, min(_FLUSHED_BYTES, free // 4))
