"""Stands in for llama-bench: its processes scatter by 5 % and the repetitions of one by 0.5 %, whatever its flags.

Run as a program by benchmarks/aa.py, some ten thousand times: it imports next to nothing. Each test of a process has
an offset of its own, as clocks, page placement and neighbours give it.
"""

from __future__ import annotations

import math
import os
import sys

PROCESS_SCATTER = 0.05
REPETITION_SCATTER = 0.005
NS_PER_TOKEN = {"prompt": 1e6, "gen": 2e7}


def main(arguments: list[str]) -> None:
    """Print a row of jsonl for the prompt and one for the generation."""
    options = dict(zip(arguments[::2], arguments[1::2], strict=False))
    for kind, flag in (("prompt", "-p"), ("gen", "-n")):
        n_tokens = int(options.get(flag, "0"))
        if n_tokens:
            sizes = (n_tokens, 0) if kind == "prompt" else (0, n_tokens)
            samples = _samples(NS_PER_TOKEN[kind] * n_tokens, int(options.get("-r", "5")))
            print(
                f'{{"build_commit": "0", "model_filename": "m.gguf", "n_ubatch": 512, "n_depth": 0, '
                f'"n_prompt": {sizes[0]}, "n_gen": {sizes[1]}, "samples_ns": {samples}}}'
            )


def _samples(centre_ns: float, repetitions: int) -> list[int]:
    of_process = math.exp(PROCESS_SCATTER * _normal())
    return [int(centre_ns * of_process * math.exp(REPETITION_SCATTER * _normal())) for _ in range(repetitions)]


def _normal() -> float:
    """A standard normal number, from the system's own randomness (Box and Muller, 1958)."""
    first, second = ((int.from_bytes(os.urandom(7), "big") + 1) / 2**56 for _ in range(2))
    return math.sqrt(-2 * math.log(first)) * math.cos(2 * math.pi * second)


if __name__ == "__main__":
    main(sys.argv[1:])
