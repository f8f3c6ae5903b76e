"""Hand-made tiny captures with known answers; every figure below can be checked with pencil and paper.

All of them live on a microsecond grid. A dense pass has two ubatches in prefill (0, 1) and one decode step (2), each
over two layers whose weights take 100 us to copy (8,000 bytes) and 60 us to compute:

    off   copy 100, compute 60, copy 100, compute 60, ...          a ubatch takes 320 us, nothing is hidden
    on    every copy but the first runs ahead of its consumer      copies back to back; 60 us of compute hide 60 us
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from executor.passes import EventRecord, ExpertsRecord, PassResult, Phase, UbatchRecord
from profiler.capture import Capture
from profiler.manifest import ManifestArm
from profiler.storage.writer import CaptureWriter, PassKey, new_capture

US: Final = 1000
COPY_US, COMPUTE_US, COPY_BYTES = 100, 60, 8000
N_UBATCHES, N_LAYERS = 3, 2
N_COPIES = N_UBATCHES * N_LAYERS
LINK_GB_S: Final = 0.1
TOKENS: Final = [5, 7]

OFF_WALL_US = N_COPIES * (COPY_US + COMPUTE_US)  # 960
ON_WALL_US = N_COPIES * COPY_US + COMPUTE_US  # 660: copies back to back, the last compute sticks out
OFF_HIDDEN_US, ON_HIDDEN_US = 0, (N_COPIES - 1) * COMPUTE_US  # 0, 300


def dense_off_on(
    path: Path | str, n_pairs: int = 6, *, digests: Sequence[str] = ("same", "same"), force: bool = False
) -> Capture:
    """Arms `off` and `on`, one warm-up each, `n_pairs` repetitions in ABBA order. `on` is 960/660 times as fast."""
    writer = _dense_writer(path, force=force)
    _run_dense(writer, n_pairs, digests)
    writer.finish()
    return Capture.open(path)


def one_trace(path: Path | str) -> Capture:
    """A trace of one GPU that names no arms: two layers whose copies come in line, from 400 us on two whose copies run
    beside the compute before them."""
    copies = [(0, 100), (160, 260), (400, 500), (500, 600)]
    kernels = [(100, 160), (260, 320), (500, 560), (600, 660)]
    spans, kinds = [*copies, *kernels], ["h2d"] * 4 + ["compute"] * 4
    rows = {
        "kind": kinds,
        "process": [1] * 8,
        "device": [0] * 8,
        "stream": ["7"] * 8,
        "bytes": [COPY_BYTES] * 4 + [None] * 4,
    }
    rows |= {"t_start": [begin * US for begin, _ in spans], "t_end": [end * US for _, end in spans]}
    writer = new_capture(path, source="nsys")
    writer.write_part("events", rows, "trace")
    writer.finish()
    return Capture.open(path)


def interrupted(path: Path | str, n_pairs: int = 2) -> Capture:
    """As dense_off_on, killed while a pass was being written: its events are there, its row is not."""
    writer = _dense_writer(path)
    last = _run_dense(writer, n_pairs, ("same", "same"))
    rows = {"pass_id": [last], "kind": ["compute"], "t_start": [0], "t_end": [10**9]}
    writer.write_part("events", rows, f"pass-{last:06d}")
    return Capture.open(path)


def killed_while_warming_up(path: Path | str) -> Capture:
    """Two warm-ups of `off` and one of `on`, then nothing more."""
    writer = _dense_writer(path)
    for order, arm in enumerate(("off", "off", "on")):
        writer.plan_pass(order, PassKey(arm, 4, 0, 8, 2, 0, order, 0, warmup=True), zero_ns=order * 10_000 * US)
        writer.record_pass(order, _dense_pass(arm, 0, "same"))
    return Capture.open(path)


def moe_off_on(path: Path, n_pairs: int = 6) -> Capture:
    """Arms `off` (copies 2 of 8 experts, after the router) and `on` (all 8, ahead); one layer, prefill only.

    off: copy 25 us (2,000 of 8,000 bytes), compute 60. on: copy 100 us, then compute 60, with nothing to hide behind.
    """
    writer = new_capture(
        path, arms=[ManifestArm("off", "off", "off"), ManifestArm("on", "on", "on")], link_h2d_gb_s=LINK_GB_S
    )
    for order, (arm, repetition) in enumerate(_abba(n_pairs)):
        copied = {"off": 2, "on": 8}[arm]
        copy_us = 25 * copied // 2
        events = [
            _copy(0, copy_us, layer=0, ubatch=0, n_bytes=1000 * copied, whole=8000, number=0, stream="copy"),
            _compute(copy_us, copy_us + COMPUTE_US, layer=0, ubatch=0, waits_for=0),
        ]
        end = (copy_us + COMPUTE_US) * US
        experts = [ExpertsRecord("prefill", 0, 0, 4, 8, 2, copied, None, None, bytes([0b00000101]))]
        ubatches = [UbatchRecord("prefill", 0, 4, 0, arm, 0, end)]
        result = _result(end, end, None, events, ubatches, [5], "same", 1000 * copied, experts)
        writer.plan_pass(order, PassKey(arm, 4, 0, 4, 1, repetition, order, 0))
        writer.record_pass(order, result)
    writer.finish()
    return Capture.open(path)


def imported_without_passes(path: Path) -> Capture:
    """As an nsys import gives it: one process, two devices, no passes; device 1 says no sizes.

    Device 0: h2d 0-100 us and 150-250 us on stream 7 (pinned, 4,000 bytes each), kernels 50-200 us on stream 7,
    so 50 + 50 us of 200 us are hidden; d2h 300-310 us (10 bytes, stream 20). Device 1: h2d 0-10 us, no kernels.
    """
    rows = [
        (0, "7", "h2d", 0, 100, 4000, "pinned"),
        (0, "7", "compute", 50, 200, None, None),
        (0, "7", "h2d", 150, 250, 4000, "pinned"),
        (0, "20", "d2h", 300, 310, 10, "device"),
        (1, "9", "h2d", 0, 10, None, None),
        (None, "host", "api", 0, 400, None, None),
    ]
    names = ("device", "stream", "kind", "t_start", "t_end", "bytes", "source_memory")
    columns: dict[str, Any] = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    for edge in ("t_start", "t_end"):
        columns[edge] = [time * US for time in columns[edge]]
    writer = new_capture(path, source="nsys", cannot_say=["which layer a copy belongs to"], dropped={"negative": 2})
    writer.write_part("events", columns | {"process": [4711] * len(rows)}, "trace")
    writer.finish()
    return Capture.open(path)


def passes_without_events(path: Path) -> Capture:
    """As a llama-bench import gives it: two arms, five repetitions, times and nothing else; decode_ns covers n_gen."""
    writer = new_capture(path, source="llama-bench", arms=[ManifestArm("-pw 0"), ManifestArm("-pw 1")])
    for order in range(10):
        arm, repetition = ("-pw 0", "-pw 1")[order % 2], order // 2
        key = PassKey(arm, 512, 0, 512, 16, repetition, order, 0)
        writer.add_pass_row(order, key, prefill_ns=512_000 + repetition, decode_ns=16_000, n_decoded=16)
    writer.finish()
    return Capture.open(path)


def printed_by_commands(
    path: Path, speeds: Mapping[str, float], walls: Mapping[str, float], n_boots: int = 6, name: str = "t/s"
) -> Capture:
    """Commands that print t/s under this name, `speeds` by arm, and take `walls` ms each."""
    arms = [ManifestArm(arm) for arm in speeds]
    writer = new_capture(path, source="command", arms=arms, extra={"readings": {name: {"better": "higher"}}})
    order, now = 0, 0
    for boot in range(n_boots):
        for arm, speed in speeds.items():
            took = round(1e6 * walls[arm]) + boot
            value = [(name, speed + boot / 1000)]
            key = PassKey(arm, order=order, boot=boot)
            writer.add_pass_row(order, key, t_start=now, t_end=now + took, readings=value)
            order, now = order + 1, now + took + 1000
    writer.finish()
    return Capture.open(path)


def empty(path: Path) -> Capture:
    """A run that was killed before its first pass was done."""
    new_capture(path, arms=[ManifestArm("off"), ManifestArm("on")])
    return Capture.open(path)


def dense_result(arm: str = "off") -> PassResult:
    """One dense pass as the executor hands it over: 12 events, 3 ubatches."""
    return _dense_pass(arm, 0, "same")


def _dense_writer(path: Path | str, *, force: bool = False) -> CaptureWriter:
    arms = [ManifestArm("off", "off", "off"), ManifestArm("on", "on", "on")]
    return new_capture(path, force=force, arms=arms, link_h2d_gb_s=LINK_GB_S, model={"name": "tiny"})


def _run_dense(writer: CaptureWriter, n_pairs: int, digests: Sequence[str]) -> int:
    warmups = [("off", -1), ("on", -1)]
    for order, (arm, repetition) in enumerate([*warmups, *_abba(n_pairs)]):
        key = PassKey(arm, 4, 0, 8, 2, max(repetition, 0), order, 0, warmup=repetition < 0)
        # Passes begin ten milliseconds apart; every repetition is a microsecond slower.
        writer.plan_pass(order, key, zero_ns=order * 10_000 * US)
        writer.record_pass(order, _dense_pass(arm, max(repetition, 0), digests[arm == "on"]))
    return 2 + 2 * n_pairs


def _dense_pass(arm: str, slower_us: int, digest: str) -> PassResult:
    events, ubatches = [], []
    begin = 0
    for number in range(N_COPIES):
        ubatch, layer = divmod(number, N_LAYERS)
        copy_start = number * (COPY_US + COMPUTE_US) if arm == "off" else number * COPY_US
        copy_end = copy_start + COPY_US
        compute_end = copy_end + COMPUTE_US
        stream = "compute" if arm == "off" else "copy"
        events.append(_copy(copy_start, copy_end, layer, ubatch, COPY_BYTES, COPY_BYTES, number, stream))
        events.append(_compute(copy_end, compute_end, layer, ubatch, number))
        if layer == N_LAYERS - 1:
            tokens = 4 if ubatch < 2 else 1
            ubatches.append(UbatchRecord(_phase(ubatch), ubatch, tokens, ubatch * 4, arm, begin * US, compute_end * US))
            begin = compute_end
    ttft = ubatches[1].t_end + slower_us * US
    end = ubatches[2].t_end + slower_us * US
    return _result(end, ttft, end - ttft, events, ubatches, TOKENS, digest, N_COPIES * COPY_BYTES)


def _result(
    end: int,
    ttft: int,
    decode: int | None,
    events: list[EventRecord],
    ubatches: list[UbatchRecord],
    tokens: list[int],
    digest: str,
    n_bytes: int,
    experts: Sequence[ExpertsRecord] = (),
) -> PassResult:
    return PassResult(
        t_start=0,
        t_end=end,
        ttft_ns=ttft,
        prefill_ns=ttft,
        decode_ns=decode,
        sampling_ns=0,
        tokens=tokens,
        bytes_h2d=n_bytes,
        vram_peak=50_000,
        vram_resident=30_000,
        vram_slots=16_000,
        vram_bank=None,
        logits_digest=digest,
        events=events,
        ubatches=ubatches,
        experts=list(experts),
    )


def _copy(
    start_us: int, end_us: int, layer: int, ubatch: int, n_bytes: int, whole: int, number: int, stream: str
) -> EventRecord:
    event = EventRecord("h2d", "ffn", start_us * US, end_us * US, 0, stream, _phase(ubatch), ubatch, layer, "ffn")
    event.bytes, event.whole_bytes, event.correlation_id = n_bytes, whole, number
    return event


def _compute(start_us: int, end_us: int, layer: int, ubatch: int, waits_for: int) -> EventRecord:
    times = (start_us * US, end_us * US)
    return EventRecord(
        "compute", "layer", *times, 0, "compute", _phase(ubatch), ubatch, layer, n_tokens=4, waits_for=waits_for
    )


def _phase(ubatch: int) -> Phase:
    return "prefill" if ubatch < 2 else "decode"


def _abba(n_pairs: int) -> list[tuple[str, int]]:
    order = [("off", "on"), ("on", "off")]
    return [(arm, repetition) for repetition in range(n_pairs) for arm in order[repetition % 2]]
