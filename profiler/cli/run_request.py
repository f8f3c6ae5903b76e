"""Turns the values of `hprof run`'s options into a request: llama-bench's number lists first, then the request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

from executor.devices.factory import DeviceOptions, default_kind
from executor.errors import HprofError
from executor.placement.overrides import split_configurations
from executor.policies import PREFETCH_ARMS
from executor.policies.base import PolicyOptions
from executor.units import LARGEST_COUNT
from profiler.cli.asked import AskedOptions
from profiler.cli.machine_options import link_gb_s, sim_machine
from profiler.planning.request import PlacementOptions, RecorderName, RunRequest, grid

_ITEM: Final = re.compile(r"(-?\d{1,20})(?:-(\d{1,20})(?:([+*])(\d{1,20}))?)?", re.ASCII)
MAX_VALUES: Final = 256


def parse_numbers(text: str, option: str, lowest: int) -> tuple[int, ...]:
    """The whole numbers that `text` lists, in its order, each once.

    Raises HprofError, naming `option`, for anything else, for numbers below `lowest`, and for more than 256.
    """
    values: dict[int, None] = {}
    for item in text.split(","):
        for value in _expand(item.strip(), option):
            if not lowest <= value <= LARGEST_COUNT:
                raise HprofError(f"{option} {text[:60]}: {value} is out of range; give {lowest} to {LARGEST_COUNT}.")
            values[value] = None
            if len(values) > MAX_VALUES:
                raise HprofError(f"{option} {text[:60]} lists more than {MAX_VALUES} numbers; take larger steps.")
    return tuple(values)


def _expand(item: str, option: str) -> Iterator[int]:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise HprofError(f"{option} '{item[:60]}' is not a number: write 512, or 64,256, or a range: 128-2048*2.")
    first = int(match[1])
    if match[2] is None:
        yield first
        return
    last, operator, step = int(match[2]), match[3] or "+", int(match[4] or 1)
    _check_range(item, option, first, last, operator, step)
    value = first
    while value <= last:
        yield value
        value = value * step if operator == "*" else value + step


def _check_range(item: str, option: str, first: int, last: int, operator: str, step: int) -> None:
    if last < first:
        raise HprofError(f"{option} {item}: the range ends before it begins; write the smaller number first.")
    if step < (2 if operator == "*" else 1) or (operator == "*" and first < 1):
        raise HprofError(f"{option} {item}: such steps never end; use +1 or more, or *2 or more from 1 up.")


def build_request(asked: AskedOptions) -> RunRequest:
    """The request that the options spell. Raises HprofError, naming the option, for what is no list or range."""
    _check_flash_attention(asked.flash_attn)
    return RunRequest(
        cells=tuple(
            grid(
                _numbers(asked.n_prompt, "-p", 0),
                _numbers(asked.n_gen, "-n", 0),
                _numbers(asked.n_ubatch, "-ub", 1),
                _numbers(asked.n_depth, "-d", 0),
            )
        ),
        device=_device(asked),
        model=asked.model,
        quant=asked.quant,
        layers=asked.layers,
        arms=_arms(asked.arms, asked.prefetch_weights),
        placements=_all_placements(asked),
        repetitions=asked.repetitions,
        dtype=asked.dtype,
        load_mode=asked.load_mode,
        madvise=asked.madvise,
        tensor_split=_shares(asked.tensor_split),
        policy=_policy(asked),
        all_logits=asked.all_logits,
        routing=asked.routing,
        seed=asked.seed,
        recorder=_recorder(asked),
        record_ordering=asked.record_ordering,
        inject=_fault(asked.inject, is_recorded=asked.record_ordering),
        boots=asked.boots,
    )


def _numbers(texts: Sequence[str], option: str, lowest: int) -> tuple[int, ...]:
    return parse_numbers(",".join(texts), option, lowest)


def _device(asked: AskedOptions) -> DeviceOptions:
    n_devices, n_shares = asked.n_devices, len(_shares(asked.tensor_split))
    if n_shares and n_devices not in (1, n_shares):
        raise HprofError(f"-ts {asked.tensor_split} has {n_shares} shares for --n-devices {n_devices}: give one each.")
    return DeviceOptions(
        kind=asked.device or default_kind(),
        n_devices=n_shares or n_devices,
        link_gb_s=link_gb_s(asked),
        link_latency_us=asked.link_latency_us,
        n_threads=asked.threads,
        machine=sim_machine(asked),
    )


_FLASH_ATTENTION: Final = ("1", "on", "true", "auto", "0", "off", "false")


def _check_flash_attention(text: str | None) -> None:
    if text is not None and text.lower() not in _FLASH_ATTENTION:
        raise HprofError(
            f"-fa {text[:60]}: give 1, 0, on, off or auto as llama.cpp has them, or leave it out; attention is always "
            "fused here."
        )


def _recorder(asked: AskedOptions) -> RecorderName:
    name = asked.recorder
    if asked.no_record and name != "off" and "recorder" in asked.typed:
        raise HprofError(f"--no-record and --recorder {name} exclude each other: give one of them.")
    return "off" if asked.no_record else name


def _fault(name: str | None, *, is_recorded: bool) -> str | None:
    if name is not None and not is_recorded:
        raise HprofError(f"--inject {name} is for `hprof check`, which needs what is issued: add --record-ordering.")
    return name


def _policy(asked: AskedOptions) -> PolicyOptions:
    return PolicyOptions(
        slots=asked.slots,
        gate_min_batch=asked.gate_min_batch,
        op_offload_min_batch=asked.op_offload_min_batch,
        cache_bytes=asked.moe_cache_mib << 20,
        cache_policy=asked.cache_policy,
    )


def _arms(arms: str | None, prefetch: str | None) -> tuple[str, ...]:
    if arms is not None and prefetch is not None:
        raise HprofError("-pw and --arms both choose the arms: give one of them.")
    if arms is not None:
        return tuple(name for name in (part.strip() for part in arms.split(",")) if name)
    return tuple(name for _, name in prefetch_arms(prefetch))


def prefetch_arms(text: str | None) -> list[tuple[str, str]]:
    """The values of -pw, `0` or `1`, each with its arm; both where it is left out. Raises HprofError for others."""
    flags = [part.strip() for part in (text or "0,1").split(",")]
    if not set(flags) <= {"0", "1"}:
        raise HprofError(f"-pw {text}: give 0 (off), 1 (on), or 0,1 for both; other arms are given by name.")
    return [(flag, PREFETCH_ARMS[int(flag)]) for flag in flags]


def _all_placements(asked: AskedOptions) -> tuple[PlacementOptions, ...]:
    chosen = (asked.override_tensor, asked.n_cpu_moe, asked.n_gpu_layers)
    if asked.vram_budget is None:
        return _placements(*chosen)
    if any(chosen):
        raise HprofError("--vram-budget chooses the placement itself: leave out -ot, -ncmoe and -ngl.")
    from executor.memory.budget import Budget

    return (PlacementOptions(vram_budget=Budget.parse(asked.vram_budget, "--vram-budget")),)


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
        shares = tuple(float(part) for part in text.split("/")) if text.isascii() else ()
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
    layers: Sequence[int | None] = _layers_kept(n_gpu_layers) if n_gpu_layers else (None,)
    return tuple(PlacementOptions(*choice) for choice in product(dict.fromkeys(texts), experts, layers))


def _layers_kept(texts: Sequence[str]) -> tuple[int, ...]:
    """`-ngl`: numbers, and `all`, which is -1."""
    words = [word.strip() for word in ",".join(texts).split(",")]
    if "auto" in words:
        raise HprofError("-ngl auto: hprof fits layers into device memory with --vram-budget, e.g. 24GiB; give that.")
    return _numbers(["-1" if word == "all" else word for word in words], "-ngl", -1)
