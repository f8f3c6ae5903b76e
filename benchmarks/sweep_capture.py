"""A capture such as a sweep of experts on an H200 leaves, made in seconds: 6 ubatches x 3 depths, 4 arms, 3 repetitions
and a warm-up, about a million events. A pass holds the rows that `hprof run` records of 24 layers of Qwen3-30B-A3B with
all experts in host memory, prompt and decode; their lengths scatter as measured ones do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from executor.arrays import Floats
from profiler.manifest import ManifestArm
from profiler.storage.writer import CaptureWriter, PassKey, new_capture

ARMS: Final = ("off", "on", "hot", "full")
UBATCHES: Final = (64, 128, 256, 512, 1024, 2048)
DEPTHS: Final = (0, 8192, 16384)
N_PROMPT, N_GEN, N_LAYERS, N_REPETITIONS = 2048, 16, 24, 3
N_EXPERTS, N_USED, EXPERT_BYTES = 128, 8, 2_654_208
LINK_GB_S: Final = 55.0
GAP_NS, SCATTER = 1_500.0, 0.02
RESIDENT_BYTES: Final = 630_456_320
SLOT_BYTES: Final = N_EXPERTS * EXPERT_BYTES
ALL_BYTES: Final = N_LAYERS * SLOT_BYTES
_SLOTS: Final = {"off": 1, "on": 2, "hot": 2, "full": 0}


def write_sweep(path: Path) -> None:
    """Every cell's arms in ABBA order."""
    writer = new_capture(
        path,
        argv=["hprof", "run", "-m", "qwen3-30b-a3b", "--arms", ",".join(ARMS)],
        machine={"device": "cuda", "n_devices": 1, "gpus": [{"name": "made up"}]},
        model={"name": "qwen3-30b-a3b", "n_layers": N_LAYERS, "routing": "lognormal", "n_bytes": ALL_BYTES},
        arms=[_arm(name) for name in ARMS],
        link_h2d_gb_s=LINK_GB_S,
    )
    rounds = [
        (n_depth, n_ubatch, number)
        for n_depth in DEPTHS
        for n_ubatch in UBATCHES
        for number in range(-1, N_REPETITIONS)
    ]
    order, clock_ns = 0, 0
    for n_depth, n_ubatch, number in rounds:
        for arm in ARMS[:: 1 if number % 2 else -1]:
            key = PassKey(arm, n_ubatch, n_depth, N_PROMPT, N_GEN, max(number, 0), order, 0, warmup=number < 0)
            clock_ns = _write_pass(writer, order, key, clock_ns) + 50_000_000
            order += 1
    writer.finish()


def _arm(name: str) -> ManifestArm:
    on_host = [] if name == "full" else list(range(N_LAYERS))
    effective = {"load_mode": "none", "streams_ahead": name in ("on", "hot"), "host_layers": on_host}
    effective |= {"slots": _SLOTS[name], "host_bytes": len(on_host) * SLOT_BYTES, "vram_bank": 0}
    effective |= {"vram_resident": _resident_bytes(name), "vram_slots": _SLOTS[name] * SLOT_BYTES}
    return ManifestArm(name, name, name, {"placement": "-ncmoe 99", "requested": {"arm": name}, "effective": effective})


def _resident_bytes(arm: str) -> int:
    return RESIDENT_BYTES + (ALL_BYTES if arm == "full" else 0)


def _write_pass(writer: CaptureWriter, pass_id: int, key: PassKey, begin_ns: int) -> int:
    """Writes the pass's parts and its row; gives the ns at which it ended."""
    assert key.n_ubatch is not None
    rng = np.random.default_rng([pass_id, key.n_ubatch])
    prompt = _phase(key.arm, rng, n_ubatches=N_PROMPT // key.n_ubatch, n_tokens=key.n_ubatch, first=0)
    decode = _phase(key.arm, rng, n_ubatches=N_GEN - 1, n_tokens=1, first=N_PROMPT // key.n_ubatch)
    first_ns = int(prompt.pop("end"))
    end_ns = first_ns + int(decode.pop("end"))
    part, copied = f"pass-{pass_id:06d}", 0
    for table in ("events", "ubatches", "experts"):
        rows = {name: np.concatenate([prompt[table][name], decode[table][name]]) for name in prompt[table]}
        n_rows, n_before = len(rows["ubatch"]), len(prompt[table]["ubatch"])
        if "t_start" in rows:
            shift = begin_ns + np.where(np.arange(n_rows) < n_before, 0, first_ns)
            rows |= {edge: rows[edge].astype(np.int64) + shift for edge in ("t_start", "t_end")}
        if table == "events":
            by_start = np.argsort(rows["t_start"], kind="stable")
            rows = {name: values[by_start] for name, values in rows.items()}
            copied = int(np.nansum(np.where(rows["kind"] == "h2d", rows["bytes"], 0)))
        if table == "ubatches":
            rows |= {"policy": np.full(n_rows, key.arm), "n_past": (key.n_depth or 0) + _before(rows["n_tokens"])}
        phase = np.where(np.arange(n_rows) < n_before, "prefill", "decode")
        columns = rows | {"pass_id": np.full(n_rows, pass_id), "phase": phase}
        writer.write_part(table, {name: _nulls(values) for name, values in columns.items()}, part)
    writer.add_pass_row(
        pass_id,
        key,
        t_start=begin_ns,
        t_end=begin_ns + end_ns,
        ttft_ns=first_ns,
        prefill_ns=first_ns - 90_000,
        decode_ns=end_ns - first_ns,
        sampling_ns=90_000,
        tokens=list(range(N_GEN)),
        bytes_h2d=copied,
        vram_peak=_resident_bytes(key.arm) + _SLOTS[key.arm] * SLOT_BYTES + key.n_ubatch * 600_000,
        vram_resident=_resident_bytes(key.arm),
        vram_slots=_SLOTS[key.arm] * SLOT_BYTES,
        vram_bank=0,
        logits_digest="same",
    )
    return begin_ns + end_ns


def _before(n_tokens: Floats) -> Floats:
    return np.cumsum(n_tokens) - n_tokens


def _nulls(values: Any) -> Any:
    """NaN stands for null in what is being put together."""
    return pa.array(values, mask=np.isnan(values)) if values.dtype.kind == "f" else values


def _phase(arm: str, rng: np.random.Generator, *, n_ubatches: int, n_tokens: int, first: int) -> dict[str, Any]:
    """Rows of `events`, `ubatches` and `experts` of a prompt or of the decoded tokens, from 0 ns; and its end.

    A layer's copies are laid before its experts (`off`), or beside the layer before it.
    """
    n_steps = n_ubatches * N_LAYERS
    ubatch, layer = np.divmod(np.arange(n_steps), N_LAYERS)
    pace = rng.normal(1, SCATTER / 2)

    def took(ns: float | Floats) -> Floats:
        return np.asarray(ns * pace * np.exp(rng.normal(0, SCATTER, n_steps)), np.float64)

    is_prompt = n_tokens > 1
    share = 1 - (1 - N_USED / N_EXPERTS) ** (n_tokens * 0.4) if is_prompt else N_USED / N_EXPERTS
    distinct = np.minimum(np.round(N_EXPERTS * share * rng.normal(1, 0.05, n_steps)), N_EXPERTS).clip(N_USED)
    hot = np.minimum(distinct, 90.0)
    ahead = {"on": np.full(n_steps, float(N_EXPERTS)), "hot": hot}.get(arm, np.zeros(n_steps)) * is_prompt
    behind = {"off": distinct, "hot": distinct - hot}.get(arm, np.zeros(n_steps)) * is_prompt
    attn, router, flags = took(110_000 + 90 * n_tokens), took(44_000), took(9_000)
    copy_ahead, copy_behind = (took(n * EXPERT_BYTES / LINK_GB_S) for n in (ahead, behind))
    on_host = not is_prompt and arm != "full"
    experts = took(620_000 if on_host else 60_000 + 1_500 * n_tokens)
    there, back = took(55_000) * on_host, took(62_000) * on_host
    computed = attn + router + flags + copy_behind + there + experts + back + 6 * GAP_NS
    link_free = np.where(behind > 0, attn + router + flags + copy_behind + 4 * GAP_NS, GAP_NS)
    took_ns = np.maximum(computed, link_free + np.append(copy_ahead[1:], 0))
    begin = np.cumsum(took_ns) - took_ns + max(30_000, copy_ahead[0])
    after_flags = begin + attn + router + flags + 2 * GAP_NS
    at_experts = after_flags + copy_behind + there + 3 * GAP_NS
    whole = np.full(n_steps, float(SLOT_BYTES))
    number = np.arange(n_steps) * 2.0 + first * 1000

    events: list[dict[str, Any]] = []

    def add(name: str, kind: str, stream: str, start: Floats, length: Floats, **more: Any) -> None:
        is_there = length > 0
        row = {"ubatch": ubatch + first, "layer": layer.astype(np.float64), "t_start": start, "t_end": start + length}
        row |= {"n_tokens": np.full(n_steps, n_tokens), "device": np.full(n_steps, np.nan if stream == "host" else 0.0)}
        for column in ("bytes", "whole_bytes", "n_experts", "slot", "correlation_id", "waits_for"):
            row[column] = np.broadcast_to(more.get(column, np.nan), n_steps)
        row = {column: values[is_there] for column, values in row.items()}
        n_rows = int(is_there.sum())
        labels = {"name": name, "kind": kind, "stream": stream, "tensor": more.get("tensor")}
        labels["source_memory"] = "pinned" if "tensor" in more else None
        events.append(row | {column: np.full(n_rows, label, object) for column, label in labels.items()})

    of_copy = {"tensor": "ffn_down_exps|ffn_gate_exps|ffn_up_exps", "whole_bytes": whole, "slot": layer % 2}
    ahead_name, behind_name = ("copy hot", "copy missing") if arm == "hot" else ("copy whole", "copy selective")
    beside = np.append(0.0, (begin + link_free)[:-1])
    add("attn", "compute", "compute", begin, attn)
    add("router", "compute", "compute", begin + attn + GAP_NS, router)
    add("copy flags", "d2h", "compute", begin + attn + router + 2 * GAP_NS, flags, bytes=128)
    for name, stream, n, start, length, at in (
        (ahead_name, "copy", ahead, beside, copy_ahead, 0),
        (behind_name, "copy" if arm == "hot" else "compute", behind, after_flags + GAP_NS, copy_behind, 1),
    ):
        sizes = {"bytes": n * EXPERT_BYTES, "n_experts": n, "correlation_id": number + at}
        add(name, "h2d", stream, start, length, **sizes, **of_copy)
    reads = np.where(copy_behind > 0, number + 1, np.where(copy_ahead > 0, number, np.nan))
    add("wait for copy", "wait", "compute", at_experts - GAP_NS, np.where(np.isnan(reads), 0, GAP_NS), waits_for=reads)
    add("copy activations", "d2h", "compute", after_flags + GAP_NS, there, bytes=4192)
    stream, kind = ("host", "cpu_compute") if on_host else ("compute", "compute")
    add("experts", kind, stream, at_experts, experts, waits_for=reads)
    add("copy activations", "h2d", "compute", at_experts + experts + GAP_NS, back, bytes=4096)
    starts = np.append(begin[::N_LAYERS] - begin[0], begin[-1] + computed[-1])
    spans = {"ubatch": np.arange(n_ubatches) + first, "n_tokens": np.full(n_ubatches, n_tokens)}
    used = np.packbits(np.arange(N_EXPERTS) < distinct[:, None], axis=1, bitorder="little")
    routed = {"ubatch": ubatch + first, "layer": layer, "n_tokens": np.full(n_steps, n_tokens)}
    routed |= {"n_experts": np.full(n_steps, N_EXPERTS), "distinct": distinct.astype(int)}
    routed |= {"copied": (ahead + behind).astype(int), "used": np.array([row.tobytes() for row in used], object)}
    return {
        "events": {name: np.concatenate([rows[name] for rows in events]) for name in events[0]},
        "ubatches": spans | {"t_start": starts[:-1], "t_end": starts[1:]},
        "experts": routed,
        "end": starts[-1],
    }
