"""`hprof.check()` beside PyTorch's CUDA sanitizer: which of the waits that offload loops leave out does each find?

    python -m benchmarks.gpu.sanitizer_compare              # needs a GPU; a minute or two
    python -m benchmarks.gpu.sanitizer_compare --dry-run    # on the stand-in for torch.cuda, which no sanitizer sees

Runs every case of `tests/profiler/watching/loops.py` under both and prints a row of a Markdown table as it is known.
The sanitizer begins when torch is imported and goes on after what it found, so it has a process of its own
(TORCH_CUDA_SANITIZER=1), which forks a child for each case before anything has used CUDA. Exit code 1 where
`hprof.check()` misses a case or finds something in a loop that is whole.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import torch

import hprof
from profiler.watching.checking import Check
from tests.profiler.watching.fake_cuda import FakeCuda, watching
from tests.profiler.watching.loops import CASES, RealCuda, run_loop

FOUND, NOTHING = "found", "nothing"
_CASE_S: Final = 60.0
_CODES: Final = {0: NOTHING, 10: FOUND}


def main() -> int:
    """Print the table; with --sanitized what the sanitizer says of each case, a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="on the stand-in for torch.cuda")
    parser.add_argument("--sanitized", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sanitized:
        for name, without in CASES:
            print(sanitized(name, without, is_dry=options.dry_run), flush=True)
        return 0
    where = "the stand-in for torch.cuda" if options.dry_run else torch.cuda.get_device_name()
    print(f"{where}, torch {torch.__version__}\n\n| loop | left out | hprof.check() | TORCH_CUDA_SANITIZER=1 |")
    print("|---|---|---|---|", flush=True)
    is_right = True
    for (name, without), theirs in zip(CASES, sanitizer_says(is_dry=options.dry_run), strict=True):
        ours = check_says(name, without, is_dry=options.dry_run)
        is_right &= ours == (FOUND if without else NOTHING)
        print(f"| {name} | {without or 'nothing'} | {ours} | {theirs} |", flush=True)
    return 0 if is_right else 1


def check_says(name: str, without: str | None, *, is_dry: bool) -> str:
    """What `hprof.check()` says."""
    check, cuda = checked(is_dry=is_dry)
    with check:
        run_loop(cuda, check, name, without)
    return NOTHING if check.result.is_clean else FOUND


def checked(*, is_dry: bool) -> tuple[Check, Any]:
    """A check, and the CUDA that it watches."""
    return watching() if is_dry else (hprof.check(raises=False), RealCuda())


def sanitizer_says(*, is_dry: bool) -> Iterator[str]:
    """Case after case what the sanitizer says, from a process of its own; what went wrong where it says neither."""
    command = [sys.executable, "-m", "benchmarks.gpu.sanitizer_compare", "--sanitized", *["--dry-run"] * is_dry]
    environment = os.environ | {"TORCH_CUDA_SANITIZER": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in CASES:
            yield process.stdout.readline().strip() or "failed: the process ended"


def sanitized(name: str, without: str | None, *, is_dry: bool) -> str:
    """What the sanitizer, which was enabled when torch was imported, says of a case in a child of this process."""
    if threading.active_count() > 1:
        raise SystemExit("a thread runs: a fork would not have it")
    child = os.fork()
    if not child:
        from torch.cuda._sanitizer import CUDASanitizerErrors

        try:
            run_loop(FakeCuda() if is_dry else RealCuda(), None, name, without)
        except CUDASanitizerErrors:
            os._exit(10)
        except Exception as error:  # noqa: BLE001 - whatever it is, a row says so
            print(f"{name} without {without}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    began_s = time.monotonic()
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return _CODES.get(code, f"failed with exit code {code}")
        if time.monotonic() - began_s > _CASE_S:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
