"""Stands in for llama-bench: takes its flags, prints jsonl rows with made-up times, and can fail in its ways.

Run as a program. -pw is known unless FAKE_OLD is set; FAKE_CRASH=N ends the process after N rows with SIGSEGV,
FAKE_HANG makes it sleep. Every call is written to the file that FAKE_LOG names, so that tests see the order.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

KNOWN = {"-m", "-p", "-n", "-ub", "-d", "-r", "-pw", "-ot", "-ncmoe", "-ngl", "-lm", "-o", "-fa", "--ubatch-size"}
KNOWN |= {"-b", "-sm", "-ts", "-ctk", "-ctv", "-t"}


def main(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(f"version: 4242 ({_commit()})", file=sys.stderr)  # noqa: T201
        return 0
    if arguments == ["--help"]:
        print("options:", *sorted(KNOWN - ({"-pw"} if os.environ.get("FAKE_OLD") else set())))  # noqa: T201
        return 0
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    known = KNOWN - ({"-pw"} if os.environ.get("FAKE_OLD") else set())
    if unknown := [flag for flag in options if flag not in known]:
        print(f"error: invalid parameter for argument: {unknown[0]}", file=sys.stderr)  # noqa: T201
        return 1
    if options.get("-ngl") == "many":
        print("error: invalid parameter for argument: -ngl", file=sys.stderr)  # noqa: T201
        return 1
    if "=GPU7" in options.get("-ot", ""):  # goes on without the override, and ends well
        print("error: unrecognized buffer type 'GPU7'", file=sys.stderr)  # noqa: T201
    if log := os.environ.get("FAKE_LOG"):
        with Path(log).open("a") as file:
            file.write(f"pw={options.get('-pw')} env={os.environ.get('GGML_TEST', '')}\n")
    if words := os.environ.get("FAKE_WORDS"):
        Path(words).write_text("\n".join(arguments))
    if os.environ.get("FAKE_HANG"):
        time.sleep(60)
    print("ggml_cuda_init: found 1 CUDA devices:", file=sys.stderr)  # noqa: T201
    tests = [(int(text), 0) for text in options.get("-p", "512").split(",")] + [(0, int(options.get("-n", 16)))]
    for number, (n_prompt, n_gen) in enumerate(tests):
        if str(number) == os.environ.get("FAKE_CRASH"):
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGSEGV)
        for n_ubatch in (options.get("-ub") or options.get("--ubatch-size", "512")).split(","):
            print(json.dumps(_row(options | {"-ub": n_ubatch}, n_prompt, n_gen)), flush=True)  # noqa: T201
    return 0


def _row(options: dict[str, str], n_prompt: int, n_gen: int) -> dict[str, object]:
    ahead = options.get("-pw") == "1" or os.environ.get("GGML_TEST") == "fast"
    ns = (700_000 if ahead else 1_000_000) * (n_prompt + 4 * n_gen)
    samples = [ns + 1000 * i for i in range(int(options.get("-r", "5")))]
    row = {"build_commit": _commit(), "build_number": 4242, "gpu_info": "Fake GPU", "model_filename": options["-m"]}
    row |= {"model_type": "fake 1B", "model_size": 10, "model_n_params": 5, "n_batch": 2048, "load_mode": "none"}
    row |= {
        "n_ubatch": int(options["-ub"]),
        "n_prompt": n_prompt,
        "n_gen": n_gen,
        "n_depth": 0,
    }
    row |= {"prefetch_weights": int(options["-pw"])} if "-pw" in options else {}
    return row | {"avg_ns": ns, "samples_ns": samples, "test_time": "2026-10-05T09:30:00Z"}


def _commit() -> str:
    return os.environ.get("FAKE_COMMIT", "0a1b2c3")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
