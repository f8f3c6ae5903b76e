"""A llama-bench that decodes with the model resident, run under the recorder: what the recorder's benchmarks time."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.gpu.gguf_file import moe_shape, write_gguf
from profiler.recording.session import Recording, RecordingSettings

_FEW_EXPERTS = 16  # 1 GB: a process loads it in a second, and a token launches and reads what one of 128 does


@dataclass(frozen=True, slots=True)
class LlamaDecode:
    """The command: each repetition generates `n_gen` tokens, and the first of them warms up."""

    binary: str
    model: str
    n_gen: int
    repetitions: int

    def speeds(self, variables: dict[str, str], timeout_s: float = 120) -> list[float]:
        """t/s of the repetitions after the first, in a process with these variables beside the usual ones."""
        words = [self.binary, "-o", "json", "--no-warmup", "-fa", "1", "-ngl", "99", "-m", self.model]
        words += ["-p", "0", "-n", str(self.n_gen), "-r", str(self.repetitions)]
        environment = os.environ | variables
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout_s, env=environment)
        if done.returncode:
            raise click.ClickException(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
        (row,) = json.loads(done.stdout)
        return [float(speed) for speed in row["samples_ts"][1:] or row["samples_ts"]]

    def speed(self, variables: dict[str, str]) -> float:
        """The median of them."""
        return statistics.median(self.speeds(variables))


@contextmanager
def given_or_made(model: str | None) -> Iterator[str]:
    """The path of a GGUF file: the one given, else one of few experts, which is removed again."""
    if model is not None:
        yield model
        return
    with tempfile.TemporaryDirectory() as made:
        yield str(write_gguf(moe_shape(_FEW_EXPERTS), "Q4_0", Path(made) / "moe.gguf"))


@contextmanager
def trial_recording(trial: str, settings: RecordingSettings) -> Iterator[tuple[Recording, dict[str, str]]]:
    """A recording that is thrown away afterwards, and the variables of a process that takes part in it.

    trial: HPROF_SPOOL_TRIAL, which profiler/recording/native/trial.hpp reads.
    """
    with tempfile.TemporaryDirectory() as made:
        recording = Recording.begin(settings, Path(made) / "run.spool")
        try:
            yield recording, recording.environment(os.environ) | {"HPROF_SPOOL_TRIAL": trial}
        finally:
            recording.remove()
