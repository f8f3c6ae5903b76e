"""How often a gate over many cells and arms fails equal builds, and how often it finds a slower one.

    python benchmarks/aa_gate.py                       # 200 runs a design: two captures, and two arms of one
    python benchmarks/aa_gate.py --runs 50 --comparisons 36 --effects one:1.1

Every run goes through captures and `hprof compare` with the limit `ttft>+0%`, the one that cries most. Two processes of
a build differ by 1.5 %, half of it in all their cells alike, and the repetitions of one by 0.5 %. `alone` counts the
runs that the 95 % intervals would fail, each by itself. Exit code 1 where equal builds failed in more than 6 of 100
runs (2.5 % and three standard errors of 200 runs).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final, Literal

import numpy as np

from profiler.compare import CompareResult, compare_captures
from profiler.manifest import ManifestArm
from profiler.storage.writer import new_capture

LIMIT: Final = "ttft>+0%"
MOST_FAILED: Final = 0.06
PROCESS_SCATTER, REPETITION_SCATTER = 0.015, 0.005
TTFT_NS: Final = 100_000_000
Kind = Literal["two captures", "two arms"]
CELLS_AND_ARMS: Final = {1: (1, 1), 6: (6, 1), 18: (6, 3), 36: (12, 3)}
EFFECTS: Final = "none,one:1.05,one:1.1,all:1.05"


def times(rng: np.random.Generator, n_cells: int, n_boots: int, n_repetitions: int, slower: np.ndarray) -> np.ndarray:
    """Nanoseconds by cell, boot and repetition."""
    of_process = rng.standard_normal((1, n_boots, 1)) * PROCESS_SCATTER / np.sqrt(2)
    of_cell = rng.standard_normal((n_cells, n_boots, 1)) * PROCESS_SCATTER / np.sqrt(2)
    of_repetition = rng.standard_normal((n_cells, n_boots, n_repetitions)) * REPETITION_SCATTER
    found: np.ndarray = TTFT_NS * np.exp(of_process + of_cell + of_repetition) * slower[:, None, None]
    return found


def write(path: Path, by_arm: dict[str, np.ndarray]) -> str:
    """A capture of these times, cell by cell of growing ubatches."""
    shape = next(iter(by_arm.values())).shape
    cell, boot, repetition = (index.ravel() for index in np.indices(shape))
    n = len(cell)
    columns: dict[str, list[object]] = {}
    for place, (arm, found) in enumerate(by_arm.items()):
        ends = found.ravel().astype(np.int64)
        rows = {"pass_id": np.arange(n) + place * n, "order": np.arange(n) + place * n, "boot": boot}
        rows |= {"repetition": repetition, "n_ubatch": 64 * (1 + cell), "n_prompt": np.full(n, 4096)}
        rows |= {"n_gen": np.zeros(n, int), "n_depth": np.zeros(n, int)}
        rows |= {"t_start": np.zeros(n, int), "t_end": ends, "ttft_ns": ends}
        for name, values in rows.items():
            columns.setdefault(name, []).extend(values.tolist())
        columns.setdefault("arm", []).extend([arm] * n)
        columns.setdefault("warmup", []).extend([False] * n)
    writer = new_capture(path, source="hprof", arms=[ManifestArm(arm) for arm in by_arm])
    writer.write_part("passes", columns, "all")
    writer.finish()
    return str(path)


def run(rng: np.random.Generator, kind: Kind, n: int, boots: int, repetitions: int, effect: str) -> CompareResult:
    """One comparison of two builds, of which B is slower by the effect in one of `n` cells and arms or in all."""
    n_cells, n_arms = CELLS_AND_ARMS[n] if kind == "two captures" else (n, 1)
    where, _, factor = effect.partition(":")
    slower = np.ones((n_arms, n_cells))
    if where != "none":
        slower[(slice(None), slice(None)) if where == "all" else (0, n_cells // 2)] = float(factor)
    same = np.ones(n_cells)
    sizes = (n_cells, boots, repetitions)
    with tempfile.TemporaryDirectory(prefix="hprof-gate-") as folder:
        if kind == "two arms":
            both = {"a": times(rng, *sizes, same), "b": times(rng, *sizes, slower[0])}
            path = write(Path(folder) / "run", both)
            return compare_captures(f"{path}#a", f"{path}#b", fail_on=[LIMIT])
        arms = [f"arm{number}" for number in range(n_arms)]
        before = write(Path(folder) / "before", {arm: times(rng, *sizes, same) for arm in arms})
        after = write(Path(folder) / "after", {arm: times(rng, *sizes, slower[at]) for at, arm in enumerate(arms)})
        return compare_captures(before, after, fail_on=[LIMIT])


def outcome(result: CompareResult) -> tuple[bool, bool]:
    """Whether the gate failed, and whether some interval would have failed it by itself."""
    (gate,) = result.gates
    lows = [change.against.low for change in result.changes if change.figure == "ttft_ns" and change.against]
    return gate.state == "failed", any(low is not None and low > 1 for low in lows)


def main() -> int:
    """Print the table; 1 where equal builds failed too often."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--comparisons", default="1,6,18,36", help="of 1, 6, 18 and 36 [all]")
    parser.add_argument("--designs", default="6x2,12x1", help="boots x repetitions [6x2,12x1]")
    parser.add_argument("--effects", default=EFFECTS, help=f"none, one:FACTOR, all:FACTOR [{EFFECTS}]")
    options = parser.parse_args()
    rng = np.random.default_rng(7)
    is_bad = False
    print("| sides | boots x repetitions | comparisons | slower | failed | alone |\n|---|---|---|---|---|---|")
    for kind in ("two captures", "two arms"):
        for design in options.designs.split(","):
            boots, repetitions = map(int, design.split("x"))
            for n in map(int, options.comparisons.split(",")):
                for effect in options.effects.split(","):
                    counts: Counter[str] = Counter()
                    for _ in range(options.runs):
                        failed, alone = outcome(run(rng, kind, n, boots, repetitions, effect))
                        counts.update({"failed": failed, "alone": alone})
                    is_wrong = effect == "none" and counts["failed"] > MOST_FAILED * options.runs
                    is_bad |= is_wrong
                    mark = " **too many**" if is_wrong else ""
                    told = (kind, design, n, effect, f"{counts['failed']} of {options.runs}{mark}", counts["alone"])
                    print(f"| {' | '.join(map(str, told))} |", flush=True)
    return is_bad


if __name__ == "__main__":
    sys.exit(main())
