"""Turns the values of `hprof run`'s options into a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from executor.devices.factory import DeviceOptions, default_kind
from executor.errors import HprofError
from executor.placement.overrides import split_configurations
from executor.policies.base import PolicyOptions
from profiler.cli.ranges import parse_numbers
from profiler.planning.abba import grid
from profiler.planning.request import PlacementOptions, RecorderName, RunRequest


def build_request(values: Mapping[str, Any]) -> RunRequest:
    """The request that the options spell. Raises HprofError, naming the option, for what is no list or range."""
    return RunRequest(
        cells=tuple(
            grid(
                _numbers(values["n_prompt"], "-p", 0),
                _numbers(values["n_gen"], "-n", 0),
                _numbers(values["n_ubatch"], "-ub", 1),
                _numbers(values["n_depth"], "-d", 0),
            )
        ),
        device=_device(values),
        model=values["model"],
        quant=values["quant"],
        layers=values["layers"],
        arms=_arms(values["arms"], values["prefetch_weights"]),
        placements=_all_placements(values),
        repetitions=values["repetitions"],
        dtype=values["dtype"],
        load_mode=values["load_mode"],
        madvise=values["madvise"],
        tensor_split=_shares(values["tensor_split"]),
        policy=_policy(values),
        routing=values["routing"],
        seed=values["seed"],
        recorder=_recorder(values["recorder"], no_record=values["no_record"]),
        boots=values["boots"],
    )


def _numbers(texts: Sequence[str], option: str, lowest: int) -> tuple[int, ...]:
    return parse_numbers(",".join(texts), option, lowest)


def _device(values: Mapping[str, Any]) -> DeviceOptions:
    n_devices, n_shares = values["n_devices"], len(_shares(values["tensor_split"]))
    if n_shares and n_devices not in (1, n_shares):
        raise HprofError(
            f"-ts {values['tensor_split']} has {n_shares} shares for --n-devices {n_devices}: give one each."
        )
    return DeviceOptions(
        kind=values["device"] or default_kind(),
        n_devices=n_shares or n_devices,
        link_gb_s=values["link_gb_s"],
        link_latency_us=values["link_latency_us"],
        n_threads=values["threads"],
    )


def _recorder(name: RecorderName, *, no_record: bool) -> RecorderName:
    if no_record and name == "cupti":
        raise HprofError("--no-record and --recorder cupti exclude each other: give one of them.")
    return "off" if no_record else name


def _policy(values: Mapping[str, Any]) -> PolicyOptions:
    return PolicyOptions(
        slots=values["slots"],
        gate_min_batch=values["gate_min_batch"],
        op_offload_min_batch=values["op_offload_min_batch"],
        cache_bytes=values["moe_cache_mib"] << 20,
        cache_policy=values["cache_policy"],
    )


def _arms(arms: str | None, prefetch: str | None) -> tuple[str, ...]:
    if arms is not None and prefetch is not None:
        raise HprofError("-pw and --arms both choose the arms: give one of them.")
    if arms is not None:
        return tuple(name for name in (part.strip() for part in arms.split(",")) if name)
    return tuple("on" if flag == "1" else "off" for flag in _flags(prefetch or "0,1"))


def _flags(text: str) -> list[str]:
    flags = [part.strip() for part in text.split(",")]
    if not set(flags) <= {"0", "1"}:
        raise HprofError(f"-pw {text[:60]}: give 0 (off), 1 (on), or 0,1 for both.")
    return flags


def _all_placements(values: Mapping[str, Any]) -> tuple[PlacementOptions, ...]:
    chosen = (values["override_tensor"], values["n_cpu_moe"], values["n_gpu_layers"])
    if values["vram_budget"] is None:
        return _placements(*chosen)
    if any(chosen):
        raise HprofError("--vram-budget chooses the placement itself: leave out -ot, -ncmoe and -ngl.")
    from executor.memory.sizes import parse_bytes

    return (PlacementOptions(vram_budget_bytes=parse_bytes(values["vram_budget"], "--vram-budget")),)


def _shares(text: str | None) -> tuple[float, ...]:
    """`3/1` as llama.cpp's -ts writes it."""
    if text is None:
        return ()
    if "," in text:
        raise HprofError(
            f"-ts '{text[:80]}' has a comma, which joins shares for llama-server only: write one split with /, as for "
            f"llama-bench, such as {'3/1' if '/' in text else text[:80].replace(',', '/')}."
        )
    try:
        shares = tuple(float(part) for part in text.split("/"))
    except ValueError:
        shares = ()
    if not shares or not all(0 < share < 1e9 for share in shares):
        raise HprofError(f"-ts '{text[:80]}' is not a list of shares: write it as 1/1 or 3/1, one number a device.")
    return shares


def _placements(
    overrides: Sequence[str], n_cpu_moe: Sequence[str], n_gpu_layers: Sequence[str]
) -> tuple[PlacementOptions, ...]:
    """Every combination. As soon as one option is given, what the others leave unsaid stays resident."""
    if not (overrides or n_cpu_moe or n_gpu_layers):
        return (PlacementOptions(),)
    texts: Sequence[str] = split_configurations(",".join(overrides)) if overrides else [""]
    experts = _numbers(n_cpu_moe, "-ncmoe", 0) if n_cpu_moe else (0,)
    layers: Sequence[int | None] = _numbers(n_gpu_layers, "-ngl", -1) if n_gpu_layers else (None,)
    return tuple(PlacementOptions(*choice) for choice in product(dict.fromkeys(texts), experts, layers))
