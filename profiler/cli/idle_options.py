"""Options of `hprof run` that do nothing in a run: they are said in its report, not silently ignored."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import click

from executor.errors import HprofError
from executor.policies import FULL, make_policy
from profiler.planning.plan import RunPlan

_PREFIX: Final = "HPROF_RUN_"
Reason = Callable[[RunPlan, Any], str | None]

_OF_LLAMA_BENCH: Final = {"binary": "--bin", "nsys": "--nsys", "arm_flags": "--arm"}


def refuse_others_options(given: Mapping[str, Any]) -> None:
    """Raise HprofError for an option of `--engine llama-bench`. `given`: the options that the user gave."""
    for name in _OF_LLAMA_BENCH.keys() & given.keys():
        raise HprofError(f"{_OF_LLAMA_BENCH[name]} is for --engine llama-bench: add that, or leave it out.")


def idle_options(given: Mapping[str, Any], plan: RunPlan) -> list[str]:
    """A sentence for each option given by the user that changes nothing in `plan`."""
    found = ((name, reason(plan, given[name])) for name, (_, reason) in _RULES.items() if name in given)
    return [f"{_RULES[name][0]} does nothing in this run: {why}." for name, why in found if why is not None]


def unknown_variables(command: click.Command) -> Iterator[str]:
    """A sentence for each environment variable that looks like an option and is none."""
    known = {_PREFIX + (parameter.name or "").upper() for parameter in command.params}
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in known:
            yield f"The variable {name} is no option of `hprof run`, so it does nothing."


def _without_experts(plan: RunPlan, _value: Any) -> str | None:
    return None if plan.model.has_experts else f"{plan.model.shape.name} has no experts"


def _without_cache(plan: RunPlan, _value: Any) -> str | None:
    arms = (make_policy(arm, plan.request.policy) for arm in plan.request.arms)
    return None if any(arm.cache_bytes for arm in arms) else "no arm has a cache, as --arms off,cache would"


def _without_prefetch(plan: RunPlan, _value: Any) -> str | None:
    arms = (make_policy(arm, plan.request.policy) for arm in plan.request.arms)
    return None if any(arm.streams_ahead for arm in arms) else "no arm prefetches"


def _without_gate(plan: RunPlan, _value: Any) -> str | None:
    return None if any(arm.startswith("gated") for arm in plan.request.arms) else "no arm is `gated`"


def _without_choice(plan: RunPlan, _value: Any) -> str | None:
    return f"arms {' and '.join(plan.request.arms)} never ask" if set(plan.request.arms) <= {"cpu", FULL} else None


def _without_file(plan: RunPlan, value: Any) -> str | None:
    is_asked = value not in (False, "none")
    return (
        f"{plan.model.shape.name} is no file, its weights are made up" if is_asked and plan.model.is_synthetic else None
    )


def _measured_link(plan: RunPlan, _value: Any) -> str | None:
    return "a GPU's link is measured" if plan.request.device.kind == "cuda" else None


def _no_cores(plan: RunPlan, _value: Any) -> str | None:
    kind = plan.request.device.kind
    return None if kind == "cpu" else f"device {kind} does not compute on cores that hprof counts"


def _always_fused(_plan: RunPlan, value: Any) -> str | None:
    return "attention is always fused" if str(value).lower() in ("0", "off", "false") else None


_RULES: Final[dict[str, tuple[str, Reason]]] = {
    "routing": ("--routing", _without_experts),
    "moe_cache_mib": ("--moe-cache-mib", _without_cache),
    "cache_policy": ("--cache-policy", _without_cache),
    "slots": ("--slots", _without_prefetch),
    "gate_min_batch": ("--gate-min-batch", _without_gate),
    "op_offload_min_batch": ("--op-offload-min-batch", _without_choice),
    "load_mode": ("--load-mode", _without_file),
    "madvise": ("--madvise", _without_file),
    "link_gb_s": ("--link-gb-s", _measured_link),
    "link_latency_us": ("--link-latency-us", _measured_link),
    "threads": ("--threads", _no_cores),
    "flash_attn": ("-fa 0", _always_fused),
}
