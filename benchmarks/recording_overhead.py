"""What recording costs: the same passes with the recorder on and off, in ABBA order; then the same passes, recorded,
with and without --record-ordering.

    python benchmarks/recording_overhead.py
    python benchmarks/recording_overhead.py --device cuda -m qwen3-30b-a3b --layers 8 -p 2048 -ub 512

Prints the median over pairs of recorded / bare wall time with its 95 % interval, for each arm, and the ratio of the
fastest tenths, which a busy machine disturbs least. Targets of the recorder alone: at most 2 % on cpu, 1 % on cuda;
exit code 1 when the whole interval lies above it.
"""

from __future__ import annotations

import argparse
import gc
import sys
from dataclasses import replace

import numpy as np
import torch

from executor.devices.factory import DeviceOptions
from executor.models.load import load_model
from executor.passes import PassJob
from executor.placement.place import place
from executor.session import Session, SessionOptions
from profiler.arithmetic.stats import Estimate, estimate

TARGETS = {"cpu": 0.02, "cuda": 0.01}
ARMS = ("off", "on")


def wall_ns(session: Session, job: PassJob, *, record: bool) -> float:
    gc.collect()
    gc.disable()
    try:
        result = session.run_pass(job, record=record)
    finally:
        gc.enable()
    return float(result.t_end - result.t_start)


Way = tuple[Session, bool]
"""A session, and whether its passes are recorded."""


def pairs(ways: tuple[Way, Way], arm: str, options: argparse.Namespace) -> tuple[Estimate | None, float]:
    """Second / first way, pair by pair, of one arm (the order inside a pair alternates), and of the fastest tenths."""
    taken: tuple[list[float], list[float]] = [], []
    for repetition in range(-2, options.repetitions):
        job = PassJob(0, arm, options.n_prompt, options.n_gen, options.n_ubatch, 0, max(repetition, 0))
        for number in (0, 1) if repetition % 2 == 0 else (1, 0):
            session, record = ways[number]
            duration_ns = wall_ns(session, job, record=record)
            if repetition >= 0:
                taken[number].append(duration_ns)
    bare, recorded = map(np.array, taken)
    return estimate(recorded / bare), float(np.quantile(recorded, 0.1) / np.quantile(bare, 0.1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="tiny-dense")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("-p", "--n-prompt", type=int, default=128)
    parser.add_argument("-n", "--n-gen", type=int, default=4)
    parser.add_argument("-ub", "--n-ubatch", type=int, default=64)
    parser.add_argument("-r", "--repetitions", type=int, default=80)
    options = parser.parse_args()
    model = load_model(options.model, layers=options.layers)
    n_ubatches = -(-options.n_prompt // options.n_ubatch) + options.n_gen
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    device = DeviceOptions(options.device, n_threads=1)
    settings = SessionOptions(device, options.n_prompt + options.n_gen, options.n_ubatch, n_ubatches, dtype)
    session = Session(model, place(model.tensors), ARMS, settings)
    ordering = Session(model, place(model.tensors), ARMS, replace(settings, record_ordering=True))
    target, missed = TARGETS[options.device], False
    try:
        gc.freeze()
        for arm in ARMS:
            cost, undisturbed = pairs(((session, False), (session, True)), arm, options)
            assert cost is not None
            interval = "" if cost.low is None else f" (95 %: {cost.low - 1:+.2%} to {(cost.high or 0) - 1:+.2%})"
            print(f"{arm:4} recording costs {cost.median - 1:+.2%}{interval}, {cost.n} pairs; target <= {target:.0%}")
            print(f"     of the fastest tenths: {undisturbed - 1:+.2%}")
            more, undisturbed = pairs(((session, True), (ordering, True)), arm, options)
            assert more is not None
            print(f"     --record-ordering adds {more.median - 1:+.2%}, of the fastest tenths {undisturbed - 1:+.2%}")
            missed |= cost.low is not None and cost.low - 1 > target
    finally:
        gc.unfreeze()
        session.close()
        ordering.close()
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
