"""The same passes recorded twice, by hprof's marks and by CUPTI through torch.profiler, must tell the same story.

The Kineto trace is read by hprof's own importer. What is compared of each arm's last pass:
* bytes: every weight copy, in order, to the byte;
* times: both ends of every copy within 20 us, after one constant offset between the two clocks;
* overlap: hidden copy / busy copy within .01.

Weights are stored as BF16, so that a copy (350 MB, 6 ms) and the compute that hides it are long beside what the two
recordings cannot agree on: marks lie some microseconds outside of the work that they surround, and between the
kernels of a step the device stands still for about a microsecond each, which hprof counts as the step's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

import hprof
from executor.arrays import Flags, Int64
from executor.devices.factory import DeviceOptions
from executor.models.load import load_model
from executor.passes import PassJob, PassResult
from executor.placement.place import place
from executor.policies.base import PolicyOptions
from executor.session import Session, SessionOptions
from executor.stamps import STAMP_KERNEL
from executor.triton_support import has_triton
from profiler.arithmetic.intervals import Intervals, intersect, union
from profiler.capture import Capture
from profiler.importers.base import ImportOptions
from profiler.importers.kineto import read

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

N_PROMPT, N_UBATCH, N_LAYERS = 16384, 4096, 4
# The last layer's FFN runs for the row whose logits are wanted, which the last ubatch alone has (docs/arms.md).
N_COPIES = (N_LAYERS - 1) * (N_PROMPT // N_UBATCH) + 1
LEAST_COPY_BYTES = 1 << 20  # anything smaller is no weight
TOLERANCE_NS = 20_000
# A mark on a stream that has nothing to do happens at once; its copy starts when the host has issued it.
HOST_LATE_NS = 1_000_000  # between the mark and the copy the host may have been away
ISSUED_LATE_NS = 15_000
MOST_ISSUED_LATE = 0.25
OVERLAP_TOLERANCE = 0.01


@dataclass(frozen=True)
class Copies:
    """Weight copies in order of their start, ns."""

    start: Int64
    end: Int64
    n_bytes: Int64


@dataclass(frozen=True)
class Recorded:
    """One pass, twice."""

    result: PassResult
    events: pa.Table  # what the importer makes of the trace


@pytest.fixture(scope="module")
def passes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    """The third pass of each arm: kernels are compiled, and steps are replayed as CUDA graphs."""
    os.environ.setdefault("TEARDOWN_CUPTI", "0")  # detaching CUPTI between passes breaks graphs before CUDA 12.6
    model = load_model("llama-3.1-8b", quant="BF16", layers=N_LAYERS)
    options = SessionOptions(
        DeviceOptions("cuda"),
        max_positions=N_PROMPT,
        max_ubatch=N_UBATCH,
        max_ubatches=N_PROMPT // N_UBATCH,
        dtype=torch.bfloat16,
        policy=PolicyOptions(op_offload_min_batch=1),
    )
    session = Session(model, place(model.tensors), ["off", "on"], options)
    folder = tmp_path_factory.mktemp("kineto")
    try:
        # Every pass is profiled: a graph that was recorded before CUPTI came is not seen by it.
        return {
            arm: [_recorded(session, arm, number, folder / f"{arm}-{number}.json") for number in range(3)][-1]
            for arm in ("off", "on")
        }
    finally:
        session.close()


def _recorded(session: Session, arm: str, repetition: int, path: Path) -> Recorded:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        result = session.run_pass(PassJob(repetition, arm, N_PROMPT, 1, N_UBATCH, 0, repetition))
    profiler.export_chrome_trace(str(path))
    return Recorded(result, read(path, ImportOptions()).tables["events"])


def native_copies(result: PassResult) -> Copies:
    rows = sorted((e for e in result.events if e.kind == "h2d" and e.tensor is not None), key=lambda e: e.t_start)
    return Copies(*(np.array([getattr(row, name) for row in rows], np.int64) for name in ("t_start", "t_end", "bytes")))


def seen_rows(events: pa.Table) -> pa.Table:
    """CUPTI's weight copies, in order of their start."""
    is_weight = pc.and_(pc.equal(kinds(events), "h2d"), pc.greater_equal(events["bytes"], LEAST_COPY_BYTES))
    return events.filter(is_weight).sort_by("t_start")


def seen_copies(events: pa.Table) -> Copies:
    rows = seen_rows(events)
    return Copies(*(rows[name].to_numpy() for name in ("t_start", "t_end", "bytes")))


def kinds(events: pa.Table) -> pa.ChunkedArray:
    return events["kind"].cast(pa.string())


@pytest.mark.parametrize("arm", ["off", "on"])
def test_the_trace_has_what_it_is_compared_by(arm: str, passes: dict[str, Recorded]) -> None:
    """If this fails, CUPTI did not record: another profiler is attached, or the driver restricts it."""
    counts = {row["values"]: row["counts"] for row in kinds(passes[arm].events).value_counts().to_pylist()}
    steps = [e for e in passes[arm].result.events if e.kind == "compute"]
    assert counts.get("h2d", 0) >= N_COPIES, f"{arm}: rows by kind {counts}"
    assert counts.get("compute", 0) >= len(steps), (
        f"{arm}: {counts.get('compute', 0)} kernels for {len(steps)} steps, so kernels inside CUDA graphs are missing "
        f"(rows by kind: {counts})"
    )


@pytest.mark.parametrize("arm", ["off", "on"])
def test_the_same_bytes_in_the_same_order(arm: str, passes: dict[str, Recorded]) -> None:
    native, seen = native_copies(passes[arm].result), seen_copies(passes[arm].events)
    assert (native.n_bytes >= LEAST_COPY_BYTES).all()
    assert len(native.n_bytes) == N_COPIES
    assert native.n_bytes.tolist() == seen.n_bytes.tolist(), (
        f"{arm}: hprof recorded {len(native.n_bytes)} weight copies of {native.n_bytes.sum():,} bytes, "
        f"CUPTI {len(seen.n_bytes)} of {seen.n_bytes.sum():,}"
    )
    assert passes[arm].result.bytes_h2d == seen.n_bytes.sum()


@pytest.mark.parametrize("arm", ["off", "on"])
def test_both_ends_of_every_copy_within_20_us(arm: str, passes: dict[str, Recorded]) -> None:
    native, seen = native_copies(passes[arm].result), seen_copies(passes[arm].events)
    offset = int(np.median(native.end - seen.end))
    early, late = seen.start + offset - native.start, native.end - (seen.end + offset)
    waited_for_host = issued_late(passes[arm].events)
    allowed = np.where(waited_for_host, HOST_LATE_NS, TOLERANCE_NS)
    report = "\n".join(
        f"  copy {i:3d}: starts {early[i] / 1e3:+8.1f} us after its mark, ends {late[i] / 1e3:+8.1f} us before its mark"
        f"{' (its stream waited for the host)' if waited_for_host[i] else ''}"
        for i in range(len(early))
    )
    print(f"\n{arm}: start {_spread(early)}, end {_spread(late)}, {waited_for_host.sum()} issued late")
    assert waited_for_host.mean() <= MOST_ISSUED_LATE, f"{arm}: the host is the limit, which says nothing\n{report}"
    assert (np.abs(late) <= TOLERANCE_NS).all(), f"{arm}: ends differ by more than {TOLERANCE_NS} ns\n{report}"
    assert (np.abs(early) <= allowed).all(), f"{arm}: starts differ by more than {TOLERANCE_NS} ns\n{report}"


def issued_late(events: pa.Table) -> Flags:
    """Copies that began as soon as the host had issued them: nothing else kept their stream busy before."""
    calls = events.filter(pc.equal(kinds(events), "api"))
    ends = dict(zip(calls["correlation_id"].to_pylist(), calls["t_end"].to_pylist(), strict=True))
    rows = seen_rows(events)
    issued = np.array([ends.get(number, -(2**60)) for number in rows["correlation_id"].to_pylist()], np.int64)
    late: Flags = rows["t_start"].to_numpy() - issued < ISSUED_LATE_NS
    return late


def _spread(values: Int64) -> str:
    low, middle, high = (np.percentile(values, q) / 1e3 for q in (0, 50, 100))
    return f"{low:+.1f} / {middle:+.1f} / {high:+.1f} us (least, median, most)"


@pytest.mark.parametrize("arm", ["off", "on"])
def test_the_same_overlap(arm: str, passes: dict[str, Recorded]) -> None:
    native, seen = native_copies(passes[arm].result), seen_copies(passes[arm].events)
    steps = [e for e in passes[arm].result.events if e.kind == "compute"]
    computed = union(*(np.array([getattr(e, name) for e in steps], np.int64) for name in ("t_start", "t_end")))
    worked = work(passes[arm].events)
    ours = hidden_ratio(native, computed)
    theirs, with_gaps = hidden_ratio(seen, without_short_gaps(worked)), hidden_ratio(seen, worked)
    told = f"{arm}: hidden / busy copy is {ours:.4f} by hprof, {theirs:.4f} by CUPTI ({with_gaps:.4f} kernel by kernel)"
    print(f"\n{told}")
    assert abs(ours - theirs) <= OVERLAP_TOLERANCE, told
    as_expected = ours > 0.3 if arm == "on" else ours <= OVERLAP_TOLERANCE
    assert as_expected, f"{told}: arm on should hide much, off nothing"


def work(events: pa.Table) -> Intervals:
    """What ran inside steps: kernels, memsets, and copies within the device (which the importer calls d2d)."""
    rows = events.filter(pc.is_in(kinds(events), pa.array(["compute", "d2d"])))
    return union(*(rows[name].to_numpy() for name in ("t_start", "t_end")))


def without_short_gaps(busy: Intervals) -> Intervals:
    """Gaps shorter than times are compared by belong to the step in which, or between which, they lie."""
    gap = busy.starts[1:] - busy.ends[:-1] > TOLERANCE_NS
    return Intervals(busy.starts[np.r_[True, gap]], busy.ends[np.r_[gap, True]])


def hidden_ratio(copies: Copies, compute: Intervals) -> float:
    busy = union(copies.start, copies.end)
    return intersect(busy, compute).total / busy.total


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """`hprof run --recorder cupti` as a user calls it."""
    path = tmp_path_factory.mktemp("cupti") / "capture"
    arguments = ["-m", "llama-3.1-8b", "--layers", "2", "-p", "1024", "-n", "4", "-ub", "256", "-r", "2"]
    arguments += ["--device", "cuda", "--recorder", "cupti", "--arms", "off,on,full", "-o", str(path), "--json"]
    assert hprof.main(["run", *arguments]) == 0
    return Capture.open(path)


def test_recorder_cupti_matches_every_passs_clock(capture: Capture) -> None:
    assert capture.manifest.dropped == {}
    assert not [w for w in capture.manifest.warnings if "CUPTI gave no kernels" in w], capture.manifest.warnings


def test_recorder_cupti_puts_kernels_into_their_steps(capture: Capture) -> None:
    events = capture.frame("events")
    kernels, steps = events[events.detail == "kernel"], events[(events.kind == "compute") & events.detail.isna()]
    in_step = kernels.ubatch.notna().groupby(kernels.pass_id).mean()
    print(f"\n{len(kernels):,} kernels in {len(steps):,} steps; least share inside a step: {in_step.min():.4f}")
    assert set(in_step.index) == set(capture.passes.pass_id)
    if has_triton():
        from executor.stamp_kernels import _stamp

        assert _stamp.__name__ == STAMP_KERNEL
    assert STAMP_KERNEL not in set(kernels.name.astype(str)), "a token's own marks are no kernels of the engine"
    assert in_step.min() >= 0.95, f"kernels inside steps, by pass:\n{in_step}"
    # a step is (pass, ubatch, layer) here: mixer and FFN of one layer share these
    layers = (
        steps[steps.layer.notna()]
        .groupby(["pass_id", "ubatch", "layer"])
        .agg(start=("t_start", "min"), end=("t_end", "max"))
    )
    mine = (
        kernels[kernels.layer.notna()]
        .groupby(["pass_id", "ubatch", "layer"])
        .agg(start=("t_start", "min"), end=("t_end", "max"))
    )
    assert layers.index.difference(mine.index).empty, "layers without a kernel: graphs recorded before CUPTI came?"
    joined = layers.join(mine, rsuffix="_kernels")
    outside = (joined.start_kernels < joined.start - TOLERANCE_NS) | (joined.end_kernels > joined.end + TOLERANCE_NS)
    assert not outside.any(), f"kernels outside their layer's steps:\n{joined[outside].head(10)}"
