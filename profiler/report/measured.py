"""What was measured, in a line: whether at all, or simulated or predicted; which model, machine, placement, routing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final, Literal

from executor.units import format_bytes, format_gb_s, format_rate, listed
from profiler.facts import gpu_names
from profiler.manifest import Manifest, is_count, is_number, is_run

Nature = Literal["measured", "simulated", "predicted", "recorded", "imported"]

_FIRST_WORD: Final[dict[Nature, str]] = {
    "measured": "Measured",
    "simulated": "SIMULATED",
    "predicted": "PREDICTED",
    "recorded": "Recorded",
    "imported": "Imported",
}
_RATES: Final = {
    "gemm_tflop_s": "GPU {} TFLOP/s",
    "memory_gb_s": "VRAM {} GB/s",
    "link_gb_s": "link {} GB/s",
    "link_latency_us": "{} us a copy",
    "launch_us": "{} us a step",
    "host_call_us": "{} us a host call",
    "host_gflop_s": "CPU {} GFLOP/s",
    "host_memory_gb_s": "RAM {} GB/s",
}
_OWN_SOURCES: Final = ("command", "python")  # captures whose times hprof took itself: of programs, and hprof.ab's
_TOOLS: Final = {"nsys": "Nsight Systems", "kineto": "torch.profiler"}  # the others are called as their sources are
_FINER: Final = ("link_gb_s", "link_latency_us", "launch_us", "host_call_us")
_CROWDED: Final = 0.5  # of the processors: programs that keep so many busy take turns with the run's own threads
_MAX_QUANTS: Final = 3
_NAMELESS: Final = "unnamed"  # what a model is called whose GGUF file has no name in it


@dataclass(frozen=True, slots=True)
class Provenance:
    """Facts for the first line; None where the capture does not say."""

    nature: Nature
    model: str | None
    quants: tuple[str, ...]  # by bytes, the largest first
    machine: str | None
    link: str | None
    placement: str | None
    budget_bytes: Sequence[int]  # of all devices, or of each
    routing: str | None
    rates: Mapping[str, float] = field(default_factory=dict)  # of an imagined machine
    load: float | None = None  # running programs, on average over the minute before the run
    n_processors: int | None = None
    source: str | None = None  # of what was imported: the tool's name
    is_untimed: bool = False  # recorded beside runs that were timed: its own times are not to be taken

    @property
    def is_exact(self) -> bool:
        """Whether no clock was read, so that the same work takes the same time again."""
        return self.nature in ("simulated", "predicted")

    @property
    def first_word(self) -> str:
        """`Measured`, `SIMULATED`, `PREDICTED`, `Recorded` or `Imported`."""
        return _FIRST_WORD[self.nature]

    def line(self, *, in_short: bool = False) -> str:
        """`SIMULATED, nothing was timed: qwen3-30b-a3b of Q4_K, Q6_K; rtx4090; ...`; in short without the flags that
        placed the weights.
        """
        quants = f" in {', '.join(self.quants[:_MAX_QUANTS])}" if self.quants else ""
        placement = self.placement.partition(" (")[0] if self.placement and in_short else self.placement
        parts = [
            f"{self.model}{quants}" if self.model else None,
            self.machine,
            self.link,
            f"VRAM budget {listed(map(format_bytes, self.budget_bytes))}" if self.budget_bytes else placement,
            f"routing: {self.routing.partition(':')[0]}" if self.routing else None,
        ]
        timed = ", nothing was timed" if self.is_exact else ", not timed" if self.is_untimed else ""
        told = "; ".join(part for part in parts if part)
        source = f" from {self.source}" if self.source else ""
        return f"{self.first_word}{source}{timed}{f': {told}' if told else ''}."

    def rates_line(self, *, in_short: bool = False) -> str | None:
        """What a simulation or prediction rests on; in short without the link and the times of single steps."""
        names = [name for name in _RATES if name in self.rates and not (in_short and name in _FINER)]
        told = [_RATES[name].format(format_rate(self.rates[name])) for name in names]
        return f"Assumed: {', '.join(told)}." if told else None

    @property
    def is_loaded(self) -> bool:
        """Whether other programs kept processors busy when the run began; nothing that is not timed minds."""
        if self.is_exact or self.is_untimed or self.load is None or not self.n_processors:
            return False
        return self.load > self.n_processors * _CROWDED

    def load_told(self) -> str:
        """`load 14 on 2 processors`."""
        return f"load {format_rate(self.load or 0)} on {self.n_processors} processors"

    def to_json(self) -> dict[str, Any]:
        """What `report --json` says of it."""
        return {
            "nature": self.nature,
            "quants": list(self.quants),
            "routing": self.routing,
            "rates": dict(self.rates),
            "load": self.load,
            "processors": self.n_processors,
            "untimed": self.is_untimed,
        }


UNTOLD: Final = Provenance("measured", None, (), None, None, None, (), None)


def what_was_measured(manifest: Manifest) -> Provenance:
    """Read off a manifest, which may be a stranger's."""
    machine, model = manifest.machine, manifest.model
    is_imagined = machine.get("device") == "sim" or manifest.source == "predicted"
    rates = machine.get("rates")
    routing = model.get("routing")
    return Provenance(
        nature=_nature(manifest),
        model=_model(model),
        quants=tuple(_quants(model)),
        machine=_text(machine.get("imagined_gpu")) if is_imagined else _machine(machine),
        link=_link(manifest),
        placement=_placement(manifest),
        budget_bytes=_budget(manifest),
        routing=_text(routing) or ("the model's own" if _has_experts(model) and manifest.source == "hprof" else None),
        rates={name: value for name, value in rates.items() if is_number(value)} if isinstance(rates, dict) else {},
        load=machine["load_1min"] if is_number(machine.get("load_1min")) else None,
        n_processors=machine["usable_threads"] if is_number(machine.get("usable_threads")) else None,
        source=_TOOLS.get(manifest.source, manifest.source) if _nature(manifest) == "imported" else None,
        is_untimed=manifest.is_untimed,
    )


def _nature(manifest: Manifest) -> Nature:
    if manifest.source == "predicted":
        return "predicted"
    if manifest.source == "hprof":
        return "simulated" if manifest.machine.get("device") == "sim" else "measured"
    if manifest.recorded_by is not None:
        return "recorded"
    is_own = manifest.source in _OWN_SOURCES or is_run(manifest.argv)
    return "measured" if is_own else "imported"


def _model(model: Mapping[str, object]) -> str | None:
    """Its name; of a file that gives none, the file's."""
    name, origin = _text(model.get("name")), _text(model.get("origin"))
    return PurePath(origin).name if origin is not None and name in (None, _NAMELESS) else name


def _quants(model: Mapping[str, object]) -> Iterator[str]:
    found = model.get("quant_bytes")
    sized = found.items() if isinstance(found, dict) else ()
    yield from (str(name) for name, n_bytes in sized if name != "F32" and n_bytes)


def _machine(machine: Mapping[str, Any]) -> str | None:
    if names := gpu_names(machine):
        return ", ".join(names)
    cpu, device = _text(machine.get("cpu")), _text(machine.get("device"))
    return ", ".join([*([cpu] if cpu else []), *([f"device {device}"] if device else [])]) or None


def _link(manifest: Manifest) -> str | None:
    name = _text(manifest.machine.get("imagined_link"))
    speed = format_gb_s(manifest.link_h2d_gb_s) if manifest.link_h2d_gb_s else None
    told = " ".join(part for part in (name, speed) if part)
    return f"link {told}" if told else None


def _placement(manifest: Manifest) -> str | None:
    """What the first placement was asked for as, and how much of the model it left in host memory."""
    for row in manifest.configurations:
        spelled, n_bytes = _text(row.get("spelled")), row.get("host_bytes")
        if not is_number(n_bytes):
            return spelled
        in_host = f"{format_bytes(float(n_bytes))} of weights in host memory"
        return f"{in_host} ({spelled})" if spelled else in_host
    return None


def _budget(manifest: Manifest) -> list[int]:
    """The first configuration's that has one: of all devices, or of each."""
    for row in manifest.configurations:
        each, of_all = row.get("budget_bytes_by_device"), row.get("budget_bytes")
        found = [one for one in (each if isinstance(each, list) else [of_all]) if is_count(one)]
        if found:
            return found
    return []


def _has_experts(model: Mapping[str, object]) -> bool:
    kinds = model.get("layer_kinds")
    return isinstance(kinds, dict) and any("experts" in str(kind) for kind in kinds)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
