"""A probe: what one machine's device was measured to take, kept as a JSON file that a person can read.

Coefficients are written as rates (`gb_s`, `gflop_s`) and times; null: no part of a step's time was found to grow with
it. `docs/predicting.md` describes the keys.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import orjson
import torch

import executor
from executor.devices.sim import SimMachine
from executor.errors import HprofError
from executor.files import bounded_read, cache_folder, whole_file
from executor.passes import Phase
from executor.units import format_share
from executor.version import __version__
from profiler.facts import cpu_model, describe_gpus
from profiler.planning.plan import DTYPES
from profiler.predicting.costs import CopyWay, Setting
from profiler.predicting.probed import Group, ProbedCosts, WorkFit

_MOST_BYTES: Final = 4 << 20
# No machine has more; rates that are fitted may be far above what it reaches, where little of the time is theirs.
_MOST_RATE: Final = 1e12  # GB/s, GFLOP/s, or what rates by themselves are in
_LEAST_RATE: Final = 1e-6
_MOST_US: Final = 1e9  # a quarter of an hour
_MOST_NS: Final = 1e12
_MOST_BYTES_OR_TOKENS: Final = 1e15
_MOST_SHARE: Final = 100.0  # of what was measured; more is no error of a fit
_MOST_SECONDS: Final = 1e6
_MOST_THREADS: Final = 1 << 20
_CROWDED: Final = 0.5  # of the processors: from such a load on, others took part of what was measured
_OTHERS: Final = 0.1  # of the processors' time
_OF_GPU: Final = ("name", "driver", "power_limit_w")
_COMPUTES: Final = ("devices", "engine", "host", "layers", "quants", "streaming", "stamp_kernels.py", "compiling.py")
_CODE: Final = {".py", ".cpp", ".hpp"}  # the CPU's products are C++
_FIGURES: Final = ("ttft", "decode")
_SCHEMA: Final = 2  # in 1, few rows moved dequantised bytes too: rates by the byte were others


@dataclass(frozen=True, slots=True)
class Measure:
    """One rate or cost by itself: what, at which size, in which unit; the median and range of its repetitions."""

    what: str
    at: str
    unit: str
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Probe:
    """`machine` tells one machine from another. `spread`: by figure, the relative half-width of an interval, from
    models that the costs were not fitted to, or, with nothing in `checked_on`, from each model by the others alone.
    `load`: of the last minute before the probe began; None: not known. `others`: the share of the processors' time that
    other programs took meanwhile. `measured` are rates by themselves, for people: predictions rest on `costs`.
    `stages`: seconds of each model and of those rates, in their order.
    """

    costs: ProbedCosts
    spread: Mapping[str, float | None]
    machine: Mapping[str, Any]
    created: str
    seconds: float
    load: float | None
    others: float | None = None
    fitted_to: tuple[str, ...] = ()
    checked_on: tuple[str, ...] = ()
    measured: tuple[Measure, ...] = ()
    stages: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_crowded(self) -> bool:
        """Whether the machine was busy with something else."""
        threads = int(self.machine.get("usable_threads") or 1)
        return (self.load or 0.0) > _CROWDED * threads or (self.others or 0.0) > _OTHERS

    def rates(self) -> SimMachine:
        """What the machine reaches, as `sim` has it: for engines whose own steps were not probed."""
        found = SimMachine()
        best = {what: self._best(what) for what in ("product", "device memory, read and written", "host memory, read")}
        gflop_s, memory, host = best.values()
        ns_per_byte = self.costs.ns_per_byte["inline"]
        return replace(
            found,
            link_gb_s=1 / ns_per_byte if ns_per_byte else found.link_gb_s,
            gemm_tflop_s=gflop_s / 1e3 if gflop_s else found.gemm_tflop_s,
            memory_gb_s=memory or found.memory_gb_s,
            host_memory_gb_s=host or found.host_memory_gb_s,
        )

    def _best(self, what: str) -> float | None:
        return max((one.median for one in self.measured if one.what == what), default=None)

    def crowding(self) -> str:
        """How busy the machine was, in a sentence."""
        threads = self.machine.get("usable_threads")
        before = f"load {self.load} on {threads} processors before"
        share = "" if self.others is None else f", others at {format_share(self.others)} of their time meanwhile"
        return f"The machine was busy when it was probed: {before}{share}. Repeat `hprof probe` on a quiet one."

    @property
    def dtype(self) -> str:
        """What activations are in, as `--dtype` spells it."""
        return next(name for name, dtype in DTYPES.items() if dtype == self.costs.dtype)

    def to_json(self) -> dict[str, Any]:
        """Plain values, which `from_json` reads back."""
        costs = self.costs
        return {
            "schema": _SCHEMA,
            "source": "probe",
            "created": self.created,
            "seconds": round(self.seconds, 1),
            "stages_s": dict(self.stages),
            "load_1min": self.load,
            "others": self.others,
            "machine": dict(self.machine),
            "dtype": self.dtype,
            "fitted_to": list(self.fitted_to),
            "checked_on": list(self.checked_on),
            "off_by": dict(self.spread),
            "link": {
                "us_a_copy": costs.per_copy_ns / 1e3,
                "gb_s": {way: _rate(ns) for way, ns in costs.ns_per_byte.items()},
            },
            "delays_us": {
                "begin": costs.begin_ns / 1e3,
                "token": costs.token_ns / 1e3,
                "routed_copy": costs.routed_copy_delay_ns / 1e3,
                "divided_copy": costs.divided_copy_delay_ns / 1e3,
            },
            "measured": [asdict(one) for one in self.measured],
            "steps": [_group(group, fit) for group, fit in costs.groups.items()],
        }


def _group(group: Group, fit: WorkFit) -> dict[str, Any]:
    once, value, byte, flop, own = (float(one) for one in fit.coefficients)
    return {
        "step": group.name,
        "where": group.where,
        "quant": group.quant,
        "phase": group.phase,
        "beside": group.setting,
        "us_once": once / 1e3,
        "ns_a_value": value,
        "gb_s": _rate(byte),
        "gflop_s": _rate(flop),
        "ns_an_own": own,
        "off_by": fit.misses,
        "n": fit.n,
        "n_tokens": list(fit.n_tokens),
        "positions": fit.positions,
        "n_bytes": list(fit.n_bytes),
    }


def _rate(ns: float) -> float | None:
    return 1 / ns if ns > 0 else None


def probe_path(device: str) -> Path:
    """Where the probe of this user's `device` is kept where nobody says otherwise."""
    return cache_folder() / f"probe-{device}.json"


def write_probe(probe: Probe, path: Path) -> None:
    """Keep a probe, whole or not at all. Raises HprofError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(orjson.dumps(probe.to_json(), option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise HprofError(f"{path} cannot be written ({error.strerror or error}); give -o another file.") from error


def read_probe(path: Path) -> Probe:
    """The probe in a file. Raises HprofError for a file that cannot be read or holds none."""
    content = bounded_read(path, _MOST_BYTES, "a probe", "make one with `hprof probe`")
    try:
        return _from_json(orjson.loads(content))
    except _ImpossibleError as error:
        raise HprofError(f"{path} is no probe of any machine: {error}; make one with `hprof probe`.") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise HprofError(f"{path} holds no probe that this hprof reads; make one with `hprof probe`.") from error


class _ImpossibleError(ValueError):
    """A number that no measurement gives; says which."""


def _from_json(found: Any) -> Probe:
    """Raises ValueError, LookupError, TypeError or AttributeError for anything but what `Probe.to_json` gives."""
    if (found["schema"], found["source"]) != (_SCHEMA, "probe") or not found["steps"]:
        raise ValueError("no probe")
    threads = found["machine"].get("usable_threads")
    if threads is not None and not (isinstance(threads, int) and 0 < threads <= _MOST_THREADS):
        raise ValueError("no number of threads")
    link, delays = found["link"], found["delays_us"]
    costs = ProbedCosts(
        groups=dict(_read_group(one) for one in found["steps"]),
        per_copy_ns=_number(link, "us_a_copy", _MOST_US) * 1e3,
        ns_per_byte=_ns_per_byte(link["gb_s"]),
        begin_ns=_number(delays, "begin", _MOST_US) * 1e3,
        token_ns=_number(delays, "token", _MOST_US) * 1e3,
        routed_copy_delay_ns=_number(delays, "routed_copy", _MOST_US) * 1e3,
        divided_copy_delay_ns=_number(delays, "divided_copy" if "divided_copy" in delays else "routed_copy", _MOST_US)
        * 1e3,
        dtype=DTYPES[found["dtype"]],
    )
    off_by, stages = found["off_by"], found.get("stages_s", {})
    spread = {name: _number_or_none(off_by, name, _MOST_SHARE, f"off_by of {name}") for name in _FIGURES}
    return Probe(
        costs,
        spread,
        {str(name): value for name, value in found["machine"].items()},
        str(found["created"]),
        _number(found, "seconds", _MOST_SECONDS),
        _number_or_none(found, "load_1min", _MOST_THREADS),
        _number_or_none(found, "others", 1.0),
        tuple(str(one) for one in found["fitted_to"]),
        tuple(str(one) for one in found["checked_on"]),
        tuple(map(_read_measure, found["measured"])),
        {str(name): _number(stages, name, _MOST_SECONDS) for name in stages},
    )


def _ns_per_byte(gb_s: Any) -> dict[CopyWay, float]:
    """An older probe does not know what copies reach beside the CPU's products."""
    divided = "divided" if "divided" in gb_s else "inline"
    return {"inline": _inverse(gb_s, "inline"), "ahead": _inverse(gb_s, "ahead"), "divided": _inverse(gb_s, divided)}


def _read_measure(one: Any) -> Measure:
    median, low, high = (_number(one, name, _MOST_RATE) for name in ("median", "low", "high"))
    if not low <= median <= high:
        raise _ImpossibleError(f"the median {median:g} lies outside its range, {low:g} to {high:g}")
    return Measure(str(one["what"]), str(one["at"]), str(one["unit"]), median, low, high)


def _read_group(one: Any) -> tuple[Group, WorkFit]:
    group = Group(
        str(one["step"]),
        str(one["where"]),
        str(one["quant"]),
        cast("Phase", str(one["phase"])),
        cast("Setting", str(one["beside"])),
    )
    coefficients = [
        _number(one, "us_once", _MOST_US) * 1e3,
        _number(one, "ns_a_value", _MOST_NS),
        _inverse(one, "gb_s"),
        _inverse(one, "gflop_s"),
        _number(one, "ns_an_own", _MOST_NS),
    ]
    n_tokens, n_bytes = _range(one, "n_tokens"), _range(one, "n_bytes")
    misses, n = _number(one, "off_by", _MOST_SHARE), int(_number(one, "n", _MOST_BYTES_OR_TOKENS))
    positions = _number(one, "positions", _MOST_BYTES_OR_TOKENS)
    return group, WorkFit(np.array(coefficients), n_tokens, positions, n_bytes, misses, n)


def _range(holder: Any, name: str) -> tuple[float, float]:
    low, high = (_number(holder[name], end, _MOST_BYTES_OR_TOKENS, name) for end in (0, 1))
    if low > high:
        raise _ImpossibleError(f"{name} has a range from {low:g} to {high:g}")
    return low, high


def _number(holder: Any, key: str | int, most: float, name: str | None = None) -> float:
    """`holder[key]`, which may be 0 up to `most`; `name` where the key tells a reader nothing."""
    value = holder[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("no number")
    if not 0 <= value <= most:
        raise _ImpossibleError(f"{name or key} is {value:g}, and may be 0 to {most:g}")
    return float(value)


def _number_or_none(holder: Any, key: str, most: float, name: str | None = None) -> float | None:
    return None if holder[key] is None else _number(holder, key, most, name)


def _inverse(holder: Any, key: str) -> float:
    """ns for each byte or operation; 0 where no rate is told."""
    if holder[key] is None:
        return 0.0
    if (rate := _number(holder, key, _MOST_RATE)) < _LEAST_RATE:
        raise _ImpossibleError(f"{key} is {rate:g}, and may be null or {_LEAST_RATE:g} to {_MOST_RATE:g}")
    return 1 / rate


def this_machine(device: str, n_threads: int | None) -> dict[str, Any]:
    """What a probe of `device` depends on: hprof and torch, the processor and threads, for cuda the GPUs too."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [{name: gpu[name] for name in _OF_GPU} for gpu in describe_gpus()] if device == "cuda" else []
    return {
        "device": device,
        "hprof": __version__,
        "kernels": _kernels(),
        "torch": torch.__version__,
        "cpu": cpu_model(),
        "usable_threads": usable,
        "threads": n_threads,
        "gpus": gpus,
    }


def _kernels() -> str:
    """A digest of the code that computes and copies: with another one, steps take other times."""
    root, digest = Path(executor.__file__).parent, hashlib.sha256()
    for file in kernel_files(root):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def kernel_files(root: Path) -> list[Path]:
    """The files below the executor's folder `root` whose code computes and copies."""
    parts = [root / part for part in _COMPUTES]
    found = [file for part in parts for file in (part.rglob("*") if part.is_dir() else [part])]
    return sorted(file for file in found if file.suffix in _CODE)


def changes(probe: Probe, machine: Mapping[str, object]) -> list[str]:
    """What is no longer as it was when the probe was made, in words; empty where nothing is."""
    return [
        f"{name} was {_told(probe.machine.get(name))} and is {_told(value)}"
        for name, value in machine.items()
        if probe.machine.get(name) != value
    ]


def _told(value: object) -> str:
    if value is None:
        return "unsaid"
    if isinstance(value, list):
        return (
            "; ".join(" ".join(str(part) for part in gpu.values()) for gpu in value if isinstance(gpu, dict)) or "none"
        )
    return str(value)[:80]
