"""Which way a product is computed: measured once for its shape and number of rows, and kept with the machine.

Two ways may round differently, so one choice holds for all arms and layouts of a run, and for later processes: it is
kept in a file of the user's cache. Where that cannot be written, or other work on the GPU disturbed the measurement,
each process measures for itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

import torch

Way = Literal["direct", "widened"]
"""Straight from stored bytes; or every weight written in the compute dtype first, then multiplied."""
_Result = TypeVar("_Result")
_TRIES: Final = 7
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
        way = self.used.get(key, self._known.get(key))
        if way is None:
            times = measured(direct, widened)
            way = times.faster
            if times.are_steady:
                self._keep(key, way)
        self.used[key] = way
        return way

    def _keep(self, key: str, way: Way) -> None:
        self._known[key] = way
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            self._known = _read(self._path) | self._known
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(self._known, indent=1, sort_keys=True), encoding="utf-8")
            partial.replace(self._path)


def choices_for(device: torch.device) -> ProductChoices:
    """The choices of a CUDA device's model."""
    return _choices_of(torch.cuda.get_device_name(device))


@functools.cache
def _choices_of(device_name: str) -> ProductChoices:
    """Another GPU, another version or other kernels: another file."""
    versions = [torch.__version__, importlib.import_module("triton").__version__]
    sources = [(Path(__file__).parent / f"{name}.py").read_bytes() for name in _KERNELS]
    digest = hashlib.sha256(b"".join([device_name.encode(), *(v.encode() for v in versions), *sources])).hexdigest()
    folder = _cache_folder()
    return ProductChoices(None if folder is None else folder / f"products-{digest[:16]}.json")


def _cache_folder() -> Path | None:
    """The user's; None for a user who has no home."""
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "hprof"
    except RuntimeError:
        return None


def used_products() -> dict[str, Way]:
    """What this process chose so far, on any device."""
    if not torch.cuda.is_available():
        return {}
    names = {torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
    return {key: way for name in sorted(names) for key, way in sorted(_choices_of(name).used.items())}


def _read(path: Path) -> dict[str, Way]:
    """What an earlier process kept; a file that is none says nothing."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
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
        """Whether each way's best was nearly reached again; else something disturbed, and another run measures anew."""
        return all(sorted(tries)[1] <= _STEADY * min(tries) for tries in (self.direct, self.widened))


def measured(direct: Callable[[], object], widened: Callable[[], object]) -> Times:
    """Time both ways on the current stream."""
    ways = (direct, widened)
    for compute in ways:
        compute()  # compiles, and lets libraries initialise
    tries = [[_milliseconds(compute) for compute in ways] for _ in range(_TRIES)]
    return Times([one for one, _ in tries], [other for _, other in tries])


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
