"""What could make `hprof record` cost a decode less: settings of CUPTI, and what is left out to see what costs.

    python -m benchmarks.gpu.record_candidates --bin llama-bench [-m moe.gguf] [--seconds 110] [--only "as it is"]

Runs llama-bench's decode under each candidate and without the recorder, a fresh process each: one without stands
beside every candidate, and rounds go forward and backward, until the seconds are over. A ratio is a candidate's t/s
(median of the process's repetitions) by the mean of the two runs without that stand around it; told are its median over
the rounds and its range, from six rounds on the 95 % interval. Processes differ by 2 %, so that few rounds tell only
what is large. Nothing is imported: what is recorded is thrown away, and what CUPTI refused is printed. `record_kinds`
looks inside one process. Without -m a file of 16 experts is made, which a process loads in a second.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import click
import numpy as np

from benchmarks.gpu.llama_decode import LlamaDecode, given_or_made, trial_recording
from benchmarks.gpu.record_kinds import launches
from executor.errors import HprofError
from profiler.arithmetic.stats import estimate
from profiler.arithmetic.turns import arm_order
from profiler.importers.cupti_spool.spool import read_spool
from profiler.recording.build import built_library
from profiler.recording.session import RecordingSettings

WITHOUT: Final = "without"  # the recorder


_ALL: Final = RecordingSettings()
_NO_HOST: Final = RecordingSettings(without=("calls", "waits", "memory"))
_NO_WORK: Final = "no_kernels=1,no_copies=1,no_memsets=1"
_NO_FACTS: Final = "no_nodes=1,no_facts=1"


@dataclass(frozen=True, slots=True)
class RecorderTrial:
    """A way to record."""

    name: str
    trial: str = ""  # HPROF_SPOOL_TRIAL: profiler/recording/native/trial.hpp
    settings: RecordingSettings = _ALL


CANDIDATES: Final = (
    RecorderTrial("as it is"),
    # where the time goes: what little is left
    RecorderTrial("no CUPTI", f"no_cupti=1,{_NO_WORK},no_graphs=1", _NO_HOST),
    RecorderTrial("subscribed alone", f"{_NO_WORK},no_graphs=1,{_NO_FACTS}", _NO_HOST),
    RecorderTrial("graphs alone", f"{_NO_WORK},{_NO_FACTS}", _NO_HOST),
    RecorderTrial("copies alone", f"no_kernels=1,no_memsets=1,no_graphs=1,{_NO_FACTS}", _NO_HOST),
    RecorderTrial("calls alone", f"{_NO_WORK},no_graphs=1,{_NO_FACTS}", RecordingSettings(without=("waits", "memory"))),
    RecorderTrial("waits alone", f"{_NO_WORK},no_graphs=1,{_NO_FACTS}", RecordingSettings(without=("calls", "memory"))),
    RecorderTrial("kernels and graphs", f"no_copies=1,no_memsets=1,{_NO_FACTS}", _NO_HOST),
    # and what one of them costs beside the rest
    RecorderTrial("all but kernels", "no_kernels=1"),
    RecorderTrial("all but copies", "no_copies=1,no_memsets=1"),
    RecorderTrial("all but waits", settings=RecordingSettings(without=("waits",))),
    RecorderTrial("all but calls", settings=RecordingSettings(without=("calls",))),
    RecorderTrial("all but the driver's calls", "no_driver_calls=1"),
    RecorderTrial("all but the runtime's calls", "no_runtime_calls=1"),
    RecorderTrial("all but memsets", "no_memsets=1"),
    RecorderTrial("all but memsets and the runtime's calls", "no_memsets=1,no_runtime_calls=1"),
    RecorderTrial("all but node callbacks", "no_nodes=1"),
    # what might cost less, all else as it is
    RecorderTrial("not subscribed", "no_subscriber=1"),
    RecorderTrial("timestamps in pinned memory", "pinned=1"),
    RecorderTrial("timestamps in large buffers", "device_bytes=33554432,device_buffers=8"),
    RecorderTrial("one buffer for all threads", "per_thread=0"),
    RecorderTrial("CUPTI's thread ids", "no_thread_ids=1"),
    RecorderTrial("flush every 10 s", "flush_ms=10000"),
    RecorderTrial("CUPTI's worker every second", "worker_ms=1000,flush_ms=10000"),
    RecorderTrial("buffers of 8 MiB", "buffer_kib=8192"),
    RecorderTrial("buffers of 8 MiB, zeroed", "buffer_kib=8192,zeroed=1"),
    RecorderTrial("hardware events (Blackwell)", "hes=1"),
    RecorderTrial(
        "all that might cost less",
        "no_driver_calls=1,pinned=1,device_bytes=33554432,no_thread_ids=1,flush_ms=10000,no_nodes=1",
    ),
)
_BY_NAME: Final = {one.name: one for one in CANDIDATES}


class DecodeProcess(NamedTuple):
    """One process."""

    name: str
    speeds: list[float]  # t/s of its repetitions, but for the first
    token_us: float | None = None  # median from launch to launch of its graphs, where they were recorded
    problems: Sequence[str] = ()

    @property
    def speed(self) -> float:
        """t/s"""
        return statistics.median(self.speeds)


def measure(decode: LlamaDecode, candidate: RecorderTrial | None) -> DecodeProcess:
    """One process; candidate None: without the recorder."""
    if candidate is None:
        return DecodeProcess(WITHOUT, decode.speeds({}))
    with trial_recording(candidate.trial, candidate.settings) as (recording, variables):
        speeds = decode.speeds(variables)
        return DecodeProcess(candidate.name, speeds, _token_us(recording.spools()), recording.new_problems())


def _token_us(spools: Sequence[Path]) -> float | None:
    """Median from one launch to the next: what stops a process now and then is not in it."""
    with suppress(HprofError):
        largest = max(spools, key=lambda path: path.stat().st_size, default=None)
        if largest is not None:
            return float(np.median(np.diff(launches(read_spool(largest))))) / 1e3
    return None


def ratios(runs: Sequence[tuple[str, float]]) -> dict[str, list[float]]:
    """Of each candidate's runs in their order: t/s by the mean of the nearest runs without before and after it."""
    plain = [number for number, (name, _) in enumerate(runs) if name == WITHOUT]
    found: dict[str, list[float]] = defaultdict(list)
    for number, (name, speed) in enumerate(runs):
        before, after = [at for at in plain if at < number], [at for at in plain if at > number]
        beside = [runs[at][1] for at in (*before[-1:], *after[:1])]
        if name != WITHOUT and beside:
            found[name].append(speed / statistics.mean(beside))
    return found


def _round(candidates: Sequence[RecorderTrial], number: int) -> list[RecorderTrial | None]:
    order: list[RecorderTrial | None] = []
    for one in arm_order(candidates, number):
        order += [one, None]
    return order


def _shown(name: str, found: Sequence[float], token_us: float) -> str:
    median = estimate(found)
    assert median is not None
    bounds = (min(found), max(found)) if median.low is None or median.high is None else (median.low, median.high)
    what = "range" if median.low is None else "95 %"
    text = f"x{median.median:.3f} ({what} {bounds[0]:.3f} to {bounds[1]:.3f}; {median.n} runs)"
    return f"{text} {token_us * (1 / median.median - 1):+6.0f} us a token  {name}"


def _chosen(only: str) -> list[RecorderTrial]:
    if not only:
        return list(CANDIDATES)
    names = [name.strip() for name in only.split(",")]
    unknown = [name for name in names if name not in _BY_NAME]
    if unknown:
        raise click.ClickException(f"{', '.join(unknown)}: no such candidate; there are {', '.join(_BY_NAME)}.")
    return [_BY_NAME[name] for name in names]


@click.command()
@click.option("--bin", "binary", required=True, type=click.Path(exists=True), help="llama-bench, a CUDA build.")
@click.option("-m", "model", type=click.Path(exists=True), help="All resident; left out, one of few experts is made.")
@click.option("-n", "n_gen", default=250, show_default=True, help="Below 256: one graph is replayed throughout.")
@click.option("-r", "repetitions", default=6, show_default=True, help="Of a process, the first warms up.")
@click.option("--seconds", default=110.0, show_default=True, help="All in all; no run begins that would end later.")
@click.option("--only", default="", help="Names of candidates, with commas between.")
@click.option("-o", "output", type=click.Path(path_type=Path), help="Write the figures as JSON too.")
def main(
    binary: str, model: str | None, n_gen: int, repetitions: int, seconds: float, only: str, output: Path | None
) -> None:
    """Measure and print."""
    wanted, began = _chosen(only), time.monotonic()
    runs: list[DecodeProcess] = []
    built_library()
    with given_or_made(model) as path:
        click.echo(f"[{time.monotonic() - began:5.1f} s] the library and the model are there")
        decode = LlamaDecode(binary, path, n_gen, repetitions)
        longest = 0.0
        order = [one for number in range(100) for one in _round(wanted, number)]
        for candidate in [None, None, *order]:  # the first fills the machine's caches
            start = time.monotonic()
            if start - began + longest > seconds:
                break
            run = measure(decode, candidate)
            longest = max(longest, time.monotonic() - start)
            runs.append(run)
            token = "" if run.token_us is None else f" ({run.token_us:.0f} us from token to token)"
            each = " ".join(f"{speed:.0f}" for speed in run.speeds)
            said = f"{run.name}: {run.speed:.1f} t/s{token}; {each} {' '.join(run.problems)}"
            click.echo(f"[{time.monotonic() - began:5.1f} s] {said}")
    del runs[:1]
    plain = [run.speed for run in runs if run.name == WITHOUT]
    token_us = 1e6 / statistics.median(plain)
    click.echo(f"\n{WITHOUT}: {1e6 / token_us:.1f} t/s ({min(plain):.1f} to {max(plain):.1f}; {len(plain)} runs)")
    found = ratios([(run.name, run.speed) for run in runs])
    for name, of_name in sorted(found.items(), key=lambda one: -statistics.median(one[1])):
        click.echo(_shown(name, of_name, token_us))
    if output is not None:
        output.write_text(json.dumps([run._asdict() for run in runs], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
