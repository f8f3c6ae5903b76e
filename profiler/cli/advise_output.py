"""Advice as blocks of text and tables, as JSON, and as the command to type into llama.cpp."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from executor.placement.place import Placement
from executor.policies import arm_traits
from executor.policies.base import PolicyOptions
from executor.units import (
    UNKNOWN,
    format_bytes,
    format_change,
    format_factor,
    format_interval,
    format_ns,
    format_share,
    format_value,
    listed,
)
from profiler.planning.request import RunRequest
from profiler.predicting.advise import Advice
from profiler.predicting.calibrate import interval
from profiler.predicting.candidates import Candidate, some_of_front
from profiler.predicting.placements import host_kinds
from profiler.report.blocks import Block, Lines, Table

Verified = Sequence[tuple[Candidate, float | None, float | None]]
Spread = Mapping[str, float | None]
_SHOWN: Final = 8
_NEVER: Final = 1 << 30  # no ubatch is so large
_USUAL: Final = PolicyOptions()
_ALL_LAYERS: Final = 999  # more than any model has, the output counted


def advice_blocks(
    advice: Advice, spread: Spread, notes: Sequence[str], llama_cpp: LlamaCppCommands | None, verified: Verified
) -> Iterator[Block]:
    """`notes`, where there are any; what to set, in the words of whom it is for, what it gives, how sure, and for
    llama.cpp how to measure it; then the best few, and what would help.
    """
    best = advice.best
    of_machine = "on the machine itself hprof probe, --fit CAPTURE or --verify N"
    sure = _sure(best, spread, of_machine if llama_cpp is None else "--fit ROWS")
    yield Lines("fact", notes)
    yield Lines("command", [f"set: {settings(best) if llama_cpp is None else llama_cpp.server}"])
    yield Lines("fact", [f"gives: {_gives(best, spread)}", f"sure: {sure}"])
    if llama_cpp is not None:
        yield Lines("command", [f"{llama_cpp.differ}:", llama_cpp.bench])
    ttft = "TTFT" if len(best.predictions) == 1 else "TTFT, sum"  # of all prompts, as the objective counts it
    columns = ["", "-ub", "slots", "cache MiB", "CPU below", "on host"]
    columns += [ttft, "prefill t/s", "decode t/s", "memory", "bound by"]
    yield _without_unknown(f"the best by {advice.objective}", columns, [_row(one) for one in advice.ranked[:_SHOWN]])
    columns = ["", "-ub", "on host", ttft, "decode t/s", "memory"]
    front = advice.pareto()
    more = f" ({_SHOWN} of {len(front)}; --json has all)" if len(front) > _SHOWN else ""
    rows = [_short_row(one) for one in some_of_front(front, advice.ranked, _SHOWN)]
    yield Table(f"none is better in all of these{more}", columns, rows)
    if verified:
        columns = ["", "TTFT", "predicted", "decode", "predicted"]
        yield Table("run for real", columns, [_verified(*one) for one in verified])
    yield Lines("summary", list(_closing(advice)))


def _without_unknown(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """The table without columns that none of its arms uses, such as the cache's size."""
    used = [at for at in range(len(columns)) if any(row[at] != UNKNOWN for row in rows)]
    return Table(title, [columns[at] for at in used], [[row[at] for at in used] for row in rows])


def settings(one: Candidate) -> str:
    """What to set, in hprof's own options."""
    traits = arm_traits(one.arm)
    parts = [f"--arms {one.arm}", f"-ub {one.n_ubatch}"]
    parts += [f"--slots {one.slots}"] if "slots" in traits.reads else []
    parts += [f"--moe-cache-mib {one.cache_mib}"] if traits.has_cache else []
    parts += [f"{flag} {value}" for flag, value in _rules(one)]
    return " ".join([*parts, f'-ot "{one.override}"' if one.override else "with everything resident"])


def _rules(one: Candidate) -> Iterator[tuple[str, int]]:
    """The threshold and the gate, where they are not the usual ones."""
    for flag, name in (("--gate-min-batch", "gate_min_batch"), ("--op-offload-min-batch", "op_offload_min_batch")):
        value = getattr(one.policy, name)
        if one.override is not None and name in arm_traits(one.arm).reads and value != getattr(_USUAL, name):
            yield flag, value


@dataclass(frozen=True, slots=True)
class LlamaCppCommands:
    """What to type into llama.cpp for one setting: to serve by it, and to measure it."""

    server: str
    bench: str
    differ: str  # a sentence on how the flags of the two differ


def llama_cpp_commands(one: Candidate, request: RunRequest, *, has_prefetch: bool) -> LlamaCppCommands:
    """The candidate as llama.cpp's own flags; `-pw` and `--moe-cache-mib` only for a build that has them."""
    traits = arm_traits(one.arm)
    longest = max(request.cells, key=lambda cell: cell.n_prompt)
    model = str(request.model)
    if not model.endswith(".gguf"):  # a preset or a config: llama.cpp reads GGUF alone
        model = f"{Path(model).name}.gguf"
    shares: tuple[float, ...] = request.tensor_split
    if not shares and request.device.n_devices > 1:  # left out, llama.cpp goes by free memory
        shares = (1.0,) * request.device.n_devices
    threads = request.device.n_threads
    flags = [f"-ngl {_ALL_LAYERS}", "-fa 1", "--load-mode none", f"-ub {one.n_ubatch}", f"-b {max(2048, one.n_ubatch)}"]
    flags += [f"-t {threads}"] if threads else []
    if has_prefetch:
        flags.append(f"-pw {int(traits.copies in ('ahead', 'chosen'))}")
        flags += [f"--moe-cache-mib {one.cache_mib}"] if traits.has_cache else []
    test = [f"-p {longest.n_prompt}", f"-n {longest.n_gen}", *([f"-d {longest.n_depth}"] if longest.n_depth else [])]
    context = max(cell.n_depth + cell.n_prompt + cell.n_gen for cell in request.cells)
    least = _NEVER if traits.computes_on_host else one.policy.op_offload_min_batch
    is_usual = one.override is None or least == _USUAL.op_offload_min_batch
    variable = "" if is_usual else f"GGML_OP_OFFLOAD_MIN_BATCH={least} "

    def command(program: str, size: Sequence[str], between_overrides: str, between_shares: str) -> str:
        words = [f"{variable}{program}", f"-m {shlex.quote(model)}", *size, *flags]
        words += [f"-ts {between_shares.join(f'{share:g}' for share in shares)}"] if shares else []
        words += [f'-ot "{one.override.replace(";", between_overrides)}"'] if one.override is not None else []
        return " ".join(words)

    apart = [f"{listed([word.split()[0] for word in test])} in place of -c"]
    apart += ["; in -ot"] if one.override is not None and ";" in one.override else []
    apart += ["/ in -ts"] if shares else []
    return LlamaCppCommands(
        command("llama-server", [f"-c {context}"], ",", ","),
        command("llama-bench", test, ";", "/"),
        f"llama-cli takes the same flags, and llama-bench too, with {listed(apart)}",
    )


def advice_json(
    advice: Advice, spread: Spread, notes: Sequence[str], llama_cpp: LlamaCppCommands | None, verified: Verified
) -> dict[str, Any]:
    """Plain values."""
    return {
        "schema": 1,
        "source": "predicted",
        "model": advice.model,
        "objective": advice.objective,
        "vram_budget_bytes": min(advice.budget.n_bytes),
        "vram_budget_bytes_by_device": list(advice.budget.n_bytes),
        "spread": dict(spread),
        "notes": list(notes),
        "llama_cpp": llama_cpp.bench if llama_cpp is not None else None,
        "llama_cpp_server": llama_cpp.server if llama_cpp is not None else None,
        "best": [candidate_json(one) for one in advice.ranked[:_SHOWN]],
        "pareto": [candidate_json(one) for one in advice.pareto()],
        "crossover_n_ubatch": {"in_line_up_to": advice.crossover[0], "ahead_from": advice.crossover[1]},
        "op_offload_min_batch": advice.threshold,
        "next_gib": advice.next_gib,
        "verified": [{**candidate_json(one), "ttft_ns": ttft, "decode_ns": decode} for one, ttft, decode in verified],
    }


def candidate_json(one: Candidate) -> dict[str, Any]:
    """A setting, and what it is predicted to give."""
    return {
        "arm": one.arm,
        "n_ubatch": one.n_ubatch,
        "slots": one.slots,
        "moe_cache_mib": one.cache_mib,
        "op_offload_min_batch": one.policy.op_offload_min_batch,
        "gate_min_batch": one.policy.gate_min_batch,
        "override_tensor": one.override,
        "host_layers": one.placement.host_layers(),
        "ttft_ns_predicted": one.ttft_ns,
        "decode_ns_predicted": one.decode_ns,
        "prefill_tokens_per_s": one.prefill_tokens_per_s,
        "decode_tokens_per_s": one.decode_tokens_per_s,
        "vram_bytes": one.vram_bytes,
        "reserve_bytes": one.reserve_bytes,
        "bound_by": one.bound_by(),
        "in_fitted_range": one.in_range,
    }


def _gives(one: Candidate, spread: Spread) -> str:
    told = []
    with_depth = any(prediction.cell.n_depth for prediction in one.predictions)
    for prediction in one.predictions:
        if prediction.ttft_ns is not None:
            low, high = interval(prediction.ttft_ns, spread.get("ttft"))
            at = f"-p {prediction.cell.n_prompt}" + (f" -d {prediction.cell.n_depth}" if with_depth else "")
            told.append(f"TTFT {format_interval(prediction.ttft_ns, low, high, 'ns')} at {at}")
    if one.decode_tokens_per_s is not None:
        low, high = interval(one.decode_tokens_per_s, spread.get("decode"))
        told.append(f"decode {format_interval(one.decode_tokens_per_s, low, high, 'tokens/s')} t/s")
    held = f"{format_bytes(one.vram_bytes)} of weights, slots and bank"
    return f"{listed(told)}, in {held} beside {format_bytes(one.reserve_bytes)} of states and activations"


def _sure(one: Candidate, spread: Spread, would: str) -> str:
    """`would`: what would say how far off the rates are."""
    names = {"ttft": "TTFT"}
    known = [f"{names.get(name, name)} ± {format_share(value)}" for name, value in spread.items() if value is not None]
    if not known:
        return f"from rates alone: nothing says how far off they are; {would} would"
    where = "" if one.in_range else "; outside what was measured, so less sure than that"
    return f"{listed(known)}, by what it misses where that was measured{where}"


def _row(one: Candidate) -> list[str]:
    traits = arm_traits(one.arm)
    return [
        _arm(one),
        str(one.n_ubatch),
        str(one.slots) if "slots" in traits.reads else UNKNOWN,
        str(one.cache_mib) if traits.has_cache else UNKNOWN,
        str(one.policy.op_offload_min_batch) if "op_offload_min_batch" in traits.reads else UNKNOWN,
        _where(one.placement),
        format_ns(one.ttft_ns),
        _rate(one.prefill_tokens_per_s),
        _rate(one.decode_tokens_per_s),
        format_bytes(one.vram_bytes),
        one.bound_by(),
    ]


def _where(placement: Placement) -> str:
    """Which weights, shortly: those of layers; of a layer that keeps some of them here, that it is one in part."""
    kinds = host_kinds(placement)
    if not kinds:
        return "nothing"
    whole = max(kinds, key=len)
    if len(kinds) == 1 and len(whole) == 1:
        return f"{whole[0].removeprefix('ffn_').removesuffix('_exps')} of {_layers(kinds[whole])}"
    parts = [layer for names, layers in kinds.items() if names != whole for layer in layers]
    return _layers(kinds[whole]) + (f", {listed(map(str, parts))} in part" if parts else "")


def _layers(layers: Sequence[int]) -> str:
    """One run of layers, or how many that are spread."""
    is_run = list(layers) == list(range(layers[0], layers[-1] + 1))
    if is_run:
        return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}-{layers[-1]}"
    return f"{len(layers)} layers, spread"


def _arm(one: Candidate) -> str:
    """Its name, with the gate where that is not the usual one."""
    gates = [str(value) for flag, value in _rules(one) if flag.startswith("--gate")]
    return f"{one.arm}, gate {gates[0]}" if gates else one.arm


def _short_row(one: Candidate) -> list[str]:
    rate, memory = _rate(one.decode_tokens_per_s), format_bytes(one.vram_bytes)
    return [_arm(one), str(one.n_ubatch), _where(one.placement), format_ns(one.ttft_ns), rate, memory]


def _rate(value: float | None) -> str:
    return format_value(value, "tokens/s")


def _verified(one: Candidate, ttft_ns: float | None, decode_ns: float | None) -> list[str]:
    pairs = ((ttft_ns, one.ttft_ns), (decode_ns, one.decode_ns))
    cells = [
        (format_value(measured, "ns"), UNKNOWN if not measured else format_change(predicted / measured))
        for measured, predicted in pairs
    ]
    return [f"{one.arm} -ub {one.n_ubatch}", *cells[0], *cells[1]]


def _closing(advice: Advice) -> Iterator[str]:
    in_line, ahead = advice.crossover
    if in_line is not None and ahead is not None:
        yield f"Copying ahead pays from a ubatch between {in_line} and {ahead} on."
    elif ahead is not None:
        yield f"Copying ahead pays at every ubatch that was looked at, from {ahead} on."
    elif in_line is not None:
        yield f"Copying in line is faster at every ubatch that was looked at, up to {in_line}."
    if advice.threshold is not None and advice.best.override is not None:
        yield f"Host weights are better copied than computed on the CPU from about {advice.threshold} tokens on."
    for name, worth in sorted(advice.next_gib.items(), key=lambda item: -item[1]):
        told = f"make it {format_factor(1 / (1 - worth))} x as fast" if 0 < worth < 1 else "bring nothing"
        yield f"A GiB more for {name} would {told}."
