"""Options of `hprof run` that change nothing in a run, or belong to another engine: none is ignored silently."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from executor.errors import HprofError
from executor.fault_names import OF_THE_BANK, WITHOUT_COPIES_AHEAD
from executor.policies import arm_traits
from profiler.cli.asked import AskedOptions
from profiler.cli.machine_options import MACHINE_FLAGS
from profiler.planning.plan import RunPlan

_PREFIX: Final = "HPROF_RUN_"
Reason = Callable[[RunPlan, Any], str | None]
_OF_OTHER_ENGINES: Final = {  # option -> its spelling, and the engines that have it
    "binary": ("--bin", "llama-bench"),
    "nsys": ("--nsys", "llama-bench"),
    "record": ("--record", "llama-bench or command"),
    "arm_flags": ("--arm", "llama-bench or command"),
    "metrics": ("--metric", "command"),
    "batch_size": ("-b", "llama-bench"),
    "cache_type_k": ("-ctk", "llama-bench"),
    "cache_type_v": ("-ctv", "llama-bench"),
    "timeout": ("--timeout", "llama-bench or command"),
}
# values that llama-bench alone has, of options that both have
_VALUES_OF_LLAMA_BENCH: Final = {"load_mode": ("-lm", {"mlock"}), "split_mode": ("-sm", {"row", "none", "tensor"})}


def refuse_others_options(asked: AskedOptions) -> None:
    """Raise HprofError for an option of another engine that the user gave."""
    for name, (flag, engines) in _OF_OTHER_ENGINES.items():
        if name in asked.typed:
            raise HprofError(f"{flag} is for --engine {engines}: add that, or leave it out.")
    for name, (flag, values) in _VALUES_OF_LLAMA_BENCH.items():
        value = asked.values[name]
        if name in asked.typed and value in values:
            raise HprofError(f"{flag} {value} is for --engine llama-bench: add that, or give another value.")


def idle_options(asked: AskedOptions, plan: RunPlan) -> list[str]:
    """A sentence for each option given by the user that changes nothing in `plan`."""
    found = ((name, reason(plan, asked.values[name])) for name, (_, reason) in _RULES.items() if name in asked.typed)
    return [f"{_RULES[name][0]} does nothing in this run: {why}." for name, why in found if why is not None]


def unknown_variables(command: click.Command) -> Iterator[str]:
    """A sentence for each environment variable that looks like an option and is none."""
    known = {_PREFIX + (parameter.name or "").upper() for parameter in command.params}
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in known:
            yield f"The variable {name} is no option of `hprof run`, so it does nothing."


def _without_experts(plan: RunPlan, _value: object) -> str | None:
    return None if plan.model.has_experts else f"{plan.model.shape.name} has no experts"


def _without_prompt(plan: RunPlan, _value: object) -> str | None:
    return None if any(cell.n_prompt for cell in plan.request.cells) else "there is no prompt (-p)"


def _unread(option: str, why: str) -> Reason:
    """For an option of `PolicyOptions` that some arms read; `{arms}` in the reason stands for those of the run."""

    def reason(plan: RunPlan, _value: object) -> str | None:
        arms = plan.request.arms
        return None if any(option in arm_traits(arm).reads for arm in arms) else why.format(arms=" and ".join(arms))

    return reason


def _nowhere_to_plant(plan: RunPlan, fault: object) -> str | None:
    traits = [arm_traits(arm) for arm in plan.request.arms]
    if fault == OF_THE_BANK:
        return None if any(one.has_cache for one in traits) else _NO_CACHE
    copies_ahead = fault in WITHOUT_COPIES_AHEAD or any(one.copies in ("ahead", "chosen") for one in traits)
    return None if copies_ahead else "no arm copies ahead, as --arms off,on would, so nothing is wrong"


def _without_file(plan: RunPlan, value: object) -> str | None:
    is_asked = value not in (False, "none")
    return (
        f"{plan.model.shape.name} is no file, its weights are made up" if is_asked and plan.model.is_synthetic else None
    )


def _measured_link(plan: RunPlan, _value: object) -> str | None:
    return "a GPU's link is measured" if plan.request.device.kind == "cuda" else None


def _no_cores(plan: RunPlan, _value: object) -> str | None:
    kind = plan.request.device.kind
    return None if kind == "cpu" else f"device {kind} does not compute on cores that hprof counts"


def _own_rates(plan: RunPlan, _value: object) -> str | None:
    kind = plan.request.device.kind
    return None if kind == "sim" else f"device {kind} has rates of its own"


def _always_fused(_plan: RunPlan, value: object) -> str | None:
    return "attention is always fused" if str(value).lower() in ("0", "off", "false") else None


_NO_CACHE: Final = "no arm has a cache, as --arms off,cache would"
_RULES: Final[dict[str, tuple[str, Reason]]] = {
    "routing": ("--routing", _without_experts),
    "all_logits": ("--all-logits", _without_prompt),
    "moe_cache_mib": ("--moe-cache-mib", _unread("cache_bytes", _NO_CACHE)),
    "cache_policy": ("--cache-policy", _unread("cache_policy", _NO_CACHE)),
    "inject": ("--inject", _nowhere_to_plant),
    "slots": ("--slots", _unread("slots", "no arm prefetches")),
    "gate_min_batch": ("--gate-min-batch", _unread("gate_min_batch", "no arm is `gated`")),
    "op_offload_min_batch": ("--op-offload-min-batch", _unread("op_offload_min_batch", "arms {arms} never ask")),
    "load_mode": ("--load-mode", _without_file),
    "madvise": ("--madvise", _without_file),
    "link_gb_s": ("--link-gb-s", _measured_link),
    "link": ("--link", _measured_link),
    "link_latency_us": ("--link-latency-us", _measured_link),
    **{name: (flag, _own_rates) for name, flag in MACHINE_FLAGS.items()},
    "threads": ("--threads", _no_cores),
    "flash_attn": ("-fa 0", _always_fused),
}
