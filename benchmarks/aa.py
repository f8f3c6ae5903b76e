"""A/A: how often two equal arms are called different. A verdict of 95 % may do so in 5 of 100 runs.

    python benchmarks/aa.py                                   # a stand-in of llama-bench: 200 runs a design
    python benchmarks/aa.py --hprof-capture traces/aa         # hprof's own arms, runs drawn from one long capture
    python benchmarks/aa.py --bin build/bin/llama-bench -m model.gguf --runs 12 --designs 2x12,12x1

A design is boots x repetitions. The stand-in (benchmarks/scattering_bench.py) and the real program go the whole way:
processes, capture, report. hprof starts in seconds, so its processes are run once,

    hprof run -m tiny-dense --device cpu --arms off,off -p 64 -n 8 -ub 32 -r 36 --boots 24 -o traces/aa

and each run draws its boots among them, and of each boot as many repetitions in a row as the design has. Exit code 1
where a figure was called different in more than 8 of 100 runs (16 of 200: 5 % and three standard errors).
"""

from __future__ import annotations

import argparse
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from profiler.arithmetic.stats import DEFAULT_NOISE, Comparison, PairDesign
from profiler.capture import Capture
from profiler.engines.bench_arms import parse_arms
from profiler.engines.llama_bench import BenchRequest, run_llama_bench
from profiler.metrics import FIGURES, JUDGED, load_tables, pass_figures
from profiler.metrics.passes import measured_passes
from profiler.report.build import build_report
from profiler.report.pairs import Repeats, judge, repeats

DESIGNS = "1x6,2x12,6x2,12x1"
MOST_DIFFERENT = 0.08
Design = tuple[int, int]  # boots, repetitions
Run = Callable[[Design], dict[str, Comparison]]  # one A/A run: figure -> comparison


def bench_run(binary: str, flags: tuple[str, ...]) -> Run:
    """Runs of a llama-bench, each a capture and its report."""

    def run(design: Design) -> dict[str, Comparison]:
        boots, repetitions = design
        request = BenchRequest(binary, parse_arms(("a=", "b=")), (*flags, "-r", str(repetitions)), boots=boots)
        with tempfile.TemporaryDirectory(prefix="hprof-aa-") as folder:
            capture = run_llama_bench(request, f"{folder}/run").capture
            cells = build_report(Capture.open(capture)).cells
        return {
            f"{name} (-p {cell.n_prompt} -n {cell.n_gen})" if name == "wall_ns" else name: found
            for cell in cells
            for name, found in cell.against_baseline["b"].items()
            if found is not None
        }

    return run


def drawn_run(address: str) -> Run:
    """Runs drawn from a long capture of hprof's with two equal arms."""
    capture = Capture.open(address)
    figures = pass_figures(*load_tables(capture, by_layer=False))["pass"]
    arms = [rows for _, rows in measured_passes(capture.passes).groupby("arm")]
    if len(arms) != 2:
        raise SystemExit(f"{address} has {len(arms)} arms; an A/A capture has two, as --arms off,off makes them.")
    pool = {
        name: [repeats(rows, figures[name].loc[rows["pass_id"]].to_numpy()) for rows in arms]
        for name in JUDGED
        if figures[name].notna().any()
    }
    boots = np.unique(arms[0]["boot"])
    n_repetitions = int(arms[0].groupby("boot").size().min())
    rng = np.random.default_rng(1)

    def run(design: Design) -> dict[str, Comparison]:
        n_boots, n = design
        chosen = rng.choice(boots, n_boots, replace=False)
        first = dict(zip(chosen.tolist(), rng.integers(0, n_repetitions - n + 1, n_boots).tolist(), strict=True))
        found = {}
        for name, sides in pool.items():
            a, b = (_stretch(side, first, n) for side in sides)
            paired = PairDesign(are_pairs=True, unit="pairs")
            compared = judge(a, b, paired, better=FIGURES[name].better or "lower", noise=DEFAULT_NOISE)
            if compared is not None:
                found[name] = compared
        return found

    return run


def _stretch(side: Repeats, first: Mapping[float, int], n: int) -> Repeats:
    """Of each chosen boot `n` repetitions in a row."""
    return {key: v for key, v in side.items() if key[0] in first and 0 <= key[1] - first[key[0]] < n}


def stand_in(folder: str) -> str:
    """The stand-in as a program that can be run."""
    path = Path(folder) / "llama-bench"
    script = Path(__file__).with_name("scattering_bench.py")
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S -X utf8 "{script}" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def count(run: Run, design: Design, n_runs: int) -> dict[str, Counter[str]]:
    """How often each verdict was given, by figure; inconclusive ones with their reason's first words."""
    counts: dict[str, Counter[str]] = {}
    for _ in range(n_runs):
        for name, found in run(design).items():
            is_different = found.verdict in ("faster", "slower")
            counts.setdefault(name, Counter())["different" if is_different else found.verdict] += 1
    return counts


def table(design: Design, counts: Mapping[str, Counter[str]], n_runs: int) -> Iterator[str]:
    """Lines of a Markdown table, and whether a figure was called different too often."""
    for name, verdicts in counts.items():
        different = verdicts["different"]
        mark = " **too many**" if different > MOST_DIFFERENT * n_runs else ""
        row = (f"{design[0]} x {design[1]}", name, f"{different} of {n_runs}{mark}", verdicts["no difference"])
        yield f"| {' | '.join(map(str, (*row, verdicts['inconclusive'])))} |"


def main() -> int:
    """Print the table; 1 where a figure was called different too often."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--designs", default=DESIGNS, help=f"boots x repetitions [{DESIGNS}]")
    parser.add_argument("--hprof-capture", help="draw the runs from this capture of two equal arms")
    parser.add_argument("--bin", help="a real llama-bench")
    parser.add_argument("-m", "--model", default="model.gguf", help="its model")
    parser.add_argument("-p", default="64")
    parser.add_argument("-n", default="16")
    parser.add_argument("-t", help="llama-bench's threads; more than there are free cores wait for each other")
    options = parser.parse_args()
    designs = [(int(boots), int(n)) for boots, n in (text.split("x") for text in options.designs.split(","))]
    is_bad = False
    print("| boots x repetitions | figure | called different | no difference | inconclusive |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="hprof-aa-") as folder:
        flags = ("-m", options.model, "-p", options.p, "-n", options.n, *(("-t", options.t) if options.t else ()))
        run = (
            drawn_run(options.hprof_capture)
            if options.hprof_capture
            else bench_run(options.bin or stand_in(folder), flags)
        )
        for design in designs:
            for line in table(design, count(run, design, options.runs), options.runs):
                is_bad |= "too many" in line
                print(line, flush=True)
    return is_bad


if __name__ == "__main__":
    sys.exit(main())
