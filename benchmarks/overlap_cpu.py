"""Prefetch on the cpu device, with a link at which copying takes about as long as computing.

    python benchmarks/overlap_cpu.py
    python benchmarks/overlap_cpu.py --rounds 10 -ub 128

The best possible prefill takes max(sum C, sum T). `on` should come within 1.10 of it (target), `off` takes their sum.
Each round measures C, sets the link's speed so that T = C, and lets off and on alternate; medians over all passes, as
other programs on the machine disturb some of them. Exit code 1 when the target is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass

from executor.devices.factory import DeviceOptions
from executor.model import Model
from executor.models.load import load_model
from executor.passes import PassJob, PassResult
from executor.placement.place import place
from executor.session import Session, SessionOptions
from profiler.arithmetic.turns import arm_order

TARGET = 1.10
ARMS = ("off", "on")


@dataclass(frozen=True, slots=True)
class Measured:
    """One prefill: its wall time, the sum of its compute intervals and of its copies, in ns."""

    wall_ns: int
    compute_ns: int
    copy_ns: int

    @property
    def ratio(self) -> float:
        return self.wall_ns / max(self.compute_ns, self.copy_ns)


def measure(result: PassResult) -> Measured:
    compute = sum(e.t_end - e.t_start for e in result.events if e.kind == "compute")
    copies = sum(e.t_end - e.t_start for e in result.events if e.kind == "h2d")
    return Measured(result.t_end - result.t_start, compute, copies)


def open_session(model: Model, options: argparse.Namespace, link_gb_s: float) -> Session:
    device = DeviceOptions("cpu", link_gb_s=link_gb_s, link_latency_us=0.0, n_threads=1)
    n_ubatches = -(-options.n_prompt // options.n_ubatch)
    settings = SessionOptions(device, options.n_prompt, options.n_ubatch, n_ubatches)
    return Session(model, place(model.tensors), ARMS, settings)


def run(session: Session, arm: str, repetition: int, options: argparse.Namespace) -> Measured:
    job = PassJob(0, arm, options.n_prompt, 0, options.n_ubatch, 0, repetition)
    return measure(session.run_pass(job))


def calibrate(model: Model, options: argparse.Namespace) -> float:
    """The link speed in GB/s at which a pass copies for as long as it computes."""
    session = open_session(model, options, link_gb_s=8.0)
    try:
        compute_ns = statistics.median(run(session, "on", i, options).compute_ns for i in range(5))
        n_bytes = sum(unit.n_bytes for unit in session.units) * -(-options.n_prompt // options.n_ubatch)
    finally:
        session.close()
    return float(n_bytes / compute_ns)


def alternate(model: Model, options: argparse.Namespace, link_gb_s: float) -> dict[str, list[Measured]]:
    """One round: a warm-up pass an arm, then both arms in mirrored order."""
    session = open_session(model, options, link_gb_s)
    measured: dict[str, list[Measured]] = {arm: [] for arm in ARMS}
    try:
        for arm in ARMS:
            run(session, arm, 0, options)
        for repetition in range(options.repetitions):
            for arm in arm_order(ARMS, repetition):
                measured[arm].append(run(session, arm, repetition, options))
    finally:
        session.close()
    return measured


def print_table(measured: dict[str, list[Measured]]) -> None:
    print(
        f"{'arm':4} {'passes':>6} {'wall ms':>8} {'sum C ms':>9} {'sum T ms':>9} {'wall / max(C, T)':>17} {'best':>6}"
    )
    for arm, passes in measured.items():
        wall, compute, copy = (
            statistics.median(getattr(p, name) for p in passes) / 1e6 for name in ("wall_ns", "compute_ns", "copy_ns")
        )
        ratios = [p.ratio for p in passes]
        print(
            f"{arm:4} {len(passes):6} {wall:8.1f} {compute:9.1f} {copy:9.1f} "
            f"{copy / compute:6.2f} {statistics.median(ratios):17.3f} {min(ratios):6.3f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="tiny-dense")
    parser.add_argument("-p", "--n-prompt", type=int, default=512)
    parser.add_argument("-ub", "--n-ubatch", type=int, default=64)
    parser.add_argument("-r", "--repetitions", type=int, default=6, help="passes an arm and round")
    parser.add_argument("--rounds", type=int, default=4, help="each sets the link's speed anew")
    options = parser.parse_args()
    model = load_model(options.model)
    measured: dict[str, list[Measured]] = {arm: [] for arm in ARMS}
    print(f"{options.model}, -p {options.n_prompt} -ub {options.n_ubatch}")
    for number in range(options.rounds):
        link_gb_s = calibrate(model, options)
        print(f"round {number + 1}: link {link_gb_s:.3f} GB/s")
        for arm, passes in alternate(model, options, link_gb_s).items():
            measured[arm] += passes
    print_table(measured)
    ratio = statistics.median(p.ratio for p in measured["on"])
    print(f"on: {ratio:.3f} of the longer of copying and computing; target <= {TARGET:.2f}")
    return 0 if ratio <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
