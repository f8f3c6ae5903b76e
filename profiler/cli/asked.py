"""What a command line of `hprof run`, `predict` or `advise` asks for: its options by name and type, and which of them
the user gave. Imports nothing heavy, so that help stays light.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click
from click.core import ParameterSource

if TYPE_CHECKING:  # each is named in quotes, which ruff does not see
    from executor.devices.base import DeviceKind  # noqa: F401
    from executor.policies.base import Eviction  # noqa: F401
    from executor.weights.transfer_units import LoadMode  # noqa: F401
    from profiler.planning.request import DtypeName, RecorderName  # noqa: F401
    from profiler.predicting.candidates import Objective  # noqa: F401

Value = TypeVar("Value")


class _Option(Generic[Value]):
    """The value of the option called as this attribute; `absent`: what it is for a command without that option."""

    def __init__(self, *absent: Value) -> None:
        self._absent = absent

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, asked: AskedOptions, owner: type) -> Value:
        if self._absent and self._name not in asked.values:
            return self._absent[0]
        found: Value = asked.values[self._name]
        return found


@dataclass(frozen=True, slots=True)
class AskedOptions:
    """`values`: by parameter, as click read them. `typed`: those that the user gave, on the command line or by the
    environment; the others have their defaults.
    """

    values: Mapping[str, Any]
    typed: frozenset[str]

    model = _Option[str]()
    quant = _Option["str | None"]()
    layers = _Option["int | None"]()
    routing = _Option["str | None"]()
    seed = _Option[int]()

    n_prompt = _Option[tuple[str, ...]]()
    n_gen = _Option[tuple[str, ...]]()
    n_ubatch = _Option[tuple[str, ...]]()
    n_depth = _Option[tuple[str, ...]]()
    all_logits = _Option[bool]()
    keeps_rows = _Option[bool](False)  # no option: what captures were made with before --all-logits
    repetitions = _Option[int](1)
    boots = _Option[int](1)
    boot = _Option["int | None"]()
    boot_path = _Option["str | None"]()
    boot_run = _Option["str | None"]()

    override_tensor = _Option[tuple[str, ...]]()
    n_cpu_moe = _Option[tuple[str, ...]]()
    n_gpu_layers = _Option[tuple[str, ...]]()
    vram_budget = _Option["str | None"]()
    load_mode = _Option["LoadMode"]()
    madvise = _Option[bool]()

    arms = _Option["str | None"]()
    prefetch_weights = _Option["str | None"]()
    slots = _Option[int]()
    gate_min_batch = _Option[int]()
    op_offload_min_batch = _Option[int]()
    moe_cache_mib = _Option[int]()
    cache_policy = _Option["Eviction"]()

    device = _Option["DeviceKind | None"]()
    n_devices = _Option[int]()
    tensor_split = _Option["str | None"]()
    link_gb_s = _Option["float | None"]()
    link_latency_us = _Option["float | None"]()
    threads = _Option["int | None"]()
    dtype = _Option["DtypeName"]()
    flash_attn = _Option["str | None"](None)
    gpu = _Option["str | None"]()
    link = _Option["str | None"]()
    device_memory = _Option["str | None"]()

    recorder = _Option["RecorderName"]("native")
    no_record = _Option[bool](False)
    record_ordering = _Option[bool](False)
    inject = _Option["str | None"](None)
    output = _Option["str | None"]()
    force = _Option[bool]()
    as_json = _Option[bool]()
    is_whole = _Option[bool]()
    dask = _Option["str | None"]()

    engine = _Option[str]()
    binary = _Option[tuple[str, ...]]()
    arm_flags = _Option[tuple[str, ...]]()
    metrics = _Option[tuple[str, ...]]()
    record = _Option[bool]()
    nsys = _Option[bool]()
    timeout = _Option[float]()
    cpu_moe = _Option[bool]()
    mmap = _Option["str | None"]()

    fits = _Option[tuple[str, ...]]()
    probe = _Option["str | None"]()
    against = _Option["str | None"](None)
    objective = _Option["Objective"]()
    verify = _Option[int](0)
    prefetch_build = _Option[bool](False)

    @classmethod
    def of(cls, context: click.Context) -> AskedOptions:
        """What a command that click has read asks for."""
        defaults = (ParameterSource.DEFAULT, None)
        typed = frozenset(name for name in context.params if context.get_parameter_source(name) not in defaults)
        return cls(context.params, typed)

    def but(self, **values: object) -> AskedOptions:
        """The same with other values, which the user did not give for that."""
        return replace(self, values={**self.values, **values})

    @property
    def names_arms(self) -> bool:
        """Whether the user chose the arms."""
        return bool({"arms", "prefetch_weights"} & self.typed)

    @property
    def names_link(self) -> bool:
        """Whether the user said how fast the link is."""
        return bool({"link", "link_gb_s"} & self.typed)

    @property
    def names_gpu(self) -> bool:
        """Whether the user named a GPU."""
        return "gpu" in self.typed
