"""`hprof.check()` beside PyTorch's CUDA sanitizer: which of the waits that offload loops leave out does each find?

    python -m benchmarks.gpu.sanitizer_compare

Runs every case of `tests/profiler/watching/loops.py` under both, the sanitizer in a process of its own
(TORCH_CUDA_SANITIZER=1), and prints a Markdown table. Needs a GPU. Exit code 1 where `hprof.check()` misses a case or
finds something in a loop that is whole.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import Final

import torch

import hprof
from tests.profiler.watching.loops import CASES, RealCuda, run_loop

FOUND, NOTHING = "found", "nothing"
_TIMEOUT_S: Final = 120


def main() -> int:
    """Print the table; with --case run one of them, for the sanitizer's process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs=2, metavar=("LOOP", "WITHOUT"), help="'-' leaves nothing out")
    case = parser.parse_args().case
    if case is not None:
        print(under_sanitizer(case[0], None if case[1] == "-" else case[1]))
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| loop | left out | hprof.check() | TORCH_CUDA_SANITIZER=1 |")
    print("|---|---|---|---|")
    is_right = True
    for name, without in CASES:
        ours, theirs = under_check(name, without), in_process_of_sanitizer(name, without)
        is_right &= ours == (FOUND if without else NOTHING)
        print(f"| {name} | {without or 'nothing'} | {ours} | {theirs} |")
    return 0 if is_right else 1


def under_check(name: str, without: str | None) -> str:
    """What `hprof.check()` says."""
    with hprof.check(raises=False) as check:
        run_loop(RealCuda(), check, name, without)
    return NOTHING if check.result.is_clean else FOUND


def under_sanitizer(name: str, without: str | None) -> str:
    """What the sanitizer says, which was enabled when torch was imported."""
    from torch.cuda._sanitizer import CUDASanitizerErrors

    try:
        run_loop(RealCuda(), None, name, without)
    except CUDASanitizerErrors:
        return FOUND
    return NOTHING


def in_process_of_sanitizer(name: str, without: str | None) -> str:
    """The same from a process of its own; what went wrong where it says neither."""
    command = [sys.executable, "-m", "benchmarks.gpu.sanitizer_compare", "--case", name, without or "-"]
    environment = os.environ | {"TORCH_CUDA_SANITIZER": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    said = done.stdout.strip().splitlines()[-1:]
    return said[0] if said in ([FOUND], [NOTHING]) else f"failed: {done.stderr.strip().splitlines()[-1:]}"


if __name__ == "__main__":
    sys.exit(main())
