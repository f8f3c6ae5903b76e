"""Runs the pieces of a preparation on all cores: one thread a piece, as threads inside a piece would wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from executor.host.products import Job


def run_jobs(jobs: Sequence[Job]) -> None:
    """Run them all; raises what the first that failed raised."""
    n_threads = torch.get_num_threads()
    if n_threads == 1 or len(jobs) < 2:
        with torch.inference_mode():
            for job in jobs:
                job()
        return
    try:
        with ThreadPoolExecutor(n_threads, "hprof-prepare", _one_thread) as pool:
            for _ in pool.map(_run, jobs):
                pass
    finally:
        torch.set_num_threads(n_threads)  # what a worker set last is what threads that begin later inherit


def _run(job: Job) -> None:
    with torch.inference_mode():
        job()


def _one_thread() -> None:
    torch.get_num_threads()  # a thread's first question resets its number, so it must come before
    torch.set_num_threads(1)
