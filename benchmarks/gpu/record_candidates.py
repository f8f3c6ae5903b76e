"""What could make `hprof record` cost a decode less: settings of CUPTI, and what is left out to see what costs.

    python -m benchmarks.gpu.record_candidates --bin llama-bench -m moe.gguf [--seconds 110] [--only graphs,zeroed]

Runs llama-bench's decode without the recorder and under each candidate, a fresh process each, in mirrored order
(forward, then backward) until the seconds are over. A ratio is a candidate's t/s by that of the runs without the
recorder in the same round. Nothing is imported: what is recorded is thrown away, and what CUPTI refused is printed.
Those that leave something out say where the time goes; the others are settings that could become the usual ones.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from profiler.recording.session import Recording, RecordingSettings

WITHOUT: Final = "without"  # the recorder


_ALL: Final = RecordingSettings()
_NO_HOST: Final = RecordingSettings(without=("calls", "waits", "memory"))
_NO_WORK: Final = "no_kernels=1,no_copies=1,no_memsets=1"


@dataclass(frozen=True, slots=True)
class RecorderTrial:
    """A way to record."""

    name: str
    trial: str = ""  # HPROF_SPOOL_TRIAL: profiler/recording/native/trial.hpp
    settings: RecordingSettings = _ALL


CANDIDATES: Final = (
    RecorderTrial("as it is"),
    # where the time goes: each of these leaves out more than the one before
    RecorderTrial("no kernels", "no_kernels=1"),
    RecorderTrial("graphs alone", f"{_NO_WORK},no_nodes=1,no_facts=1", _NO_HOST),
    RecorderTrial("kernels alone", "no_graphs=1,no_copies=1,no_memsets=1,no_nodes=1,no_facts=1", _NO_HOST),
    RecorderTrial("subscribed alone", f"{_NO_WORK},no_graphs=1,no_nodes=1,no_facts=1", _NO_HOST),
    RecorderTrial("not subscribed", f"no_subscriber=1,{_NO_WORK},no_graphs=1", _NO_HOST),
    RecorderTrial("no node callback", "no_nodes=1"),
    # what might cost less, all else as it is
    RecorderTrial("zeroed buffers", "zeroed=1"),
    RecorderTrial("buffers of 8 MiB", "buffer_kib=8192"),
    RecorderTrial("buffers of 8 MiB, zeroed", "buffer_kib=8192,zeroed=1"),
    RecorderTrial("one buffer for all threads", "per_thread=0"),
    RecorderTrial("timestamps in pinned memory", "pinned=1"),
    RecorderTrial("timestamps in large buffers", "device_bytes=33554432,device_buffers=8"),
    RecorderTrial("CUPTI's thread ids", "no_thread_ids=1"),
    RecorderTrial("flush every 10 s", "flush_ms=10000"),
    RecorderTrial("CUPTI's worker every second", "worker_ms=1000,flush_ms=10000"),
    RecorderTrial("hardware events (Blackwell)", "hes=1"),
)


def measure(command: Sequence[str], candidate: RecorderTrial | None) -> tuple[float, list[str]]:
    """t/s of one process, and what its recorder complained of; candidate None: without the recorder."""
    with tempfile.TemporaryDirectory() as made:
        if candidate is None:
            return _speed(command, {}), []
        recording = Recording.begin(candidate.settings, Path(made) / "run.spool")
        variables = recording.environment(os.environ) | {"HPROF_SPOOL_TRIAL": candidate.trial}
        try:
            return _speed(command, variables), recording.new_problems()
        finally:
            recording.remove()


def _speed(command: Sequence[str], variables: dict[str, str]) -> float:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=os.environ | variables)
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    (row,) = json.loads(done.stdout)
    return float(statistics.median(row["samples_ts"][1:] or row["samples_ts"]))  # the first repetition warms up


@click.command()
@click.option("--bin", "binary", required=True, type=click.Path(exists=True), help="llama-bench, a CUDA build.")
@click.option("-m", "model", required=True, type=click.Path(exists=True), help="All resident, so that graphs replay.")
@click.option("-n", "n_gen", default=128, show_default=True)
@click.option("-r", "repetitions", default=4, show_default=True, help="Of a process, the first warms up.")
@click.option("--seconds", default=110.0, show_default=True, help="No further run begins after so long.")
@click.option("--only", default="", help="Candidates whose names hold one of these words, with commas between.")
@click.option("-o", "output", type=click.Path(path_type=Path), help="Write the figures as JSON too.")
def main(binary: str, model: str, n_gen: int, repetitions: int, seconds: float, only: str, output: Path | None) -> None:
    """Measure and print."""
    words = [binary, "-o", "json", "--no-warmup", "-fa", "1", "-ngl", "99", "-m", model]
    command = [*words, "-p", "0", "-n", str(n_gen), "-r", str(repetitions)]
    wanted = [one for one in CANDIDATES if not only or any(word in one.name for word in only.split(","))]
    order: list[RecorderTrial | None] = [None, *wanted[: len(wanted) // 2], None, *wanted[len(wanted) // 2 :], None]
    end = time.monotonic() + seconds
    speeds: dict[str, list[float]] = defaultdict(list)
    told: dict[str, list[str]] = {}
    for number in range(100):
        for candidate in order if number % 2 == 0 else reversed(order):
            if time.monotonic() > end:
                break
            name = candidate.name if candidate is not None else WITHOUT
            speed, problems = measure(command, candidate)
            speeds[name].append(speed)
            told |= {name: problems} if problems else {}
            click.echo(f"{name}: {speed:.1f} t/s {' '.join(problems)}")
    base = statistics.median(speeds[WITHOUT])
    click.echo(f"\n{WITHOUT}: {base:.1f} t/s, {min(speeds[WITHOUT]):.1f} to {max(speeds[WITHOUT]):.1f}")
    for name, found in sorted(speeds.items(), key=lambda one: -statistics.median(one[1])):
        if name != WITHOUT:
            click.echo(
                f"x{statistics.median(found) / base:.3f}  {name}  ({len(found)} runs) {' '.join(told.get(name, []))}"
            )
    if output is not None:
        output.write_text(json.dumps({"tokens_per_s": speeds, "problems": told}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
