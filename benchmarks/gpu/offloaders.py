"""What PyTorch's offloaders hide: diffusers' group offloading, accelerate's cpu_offload, a double buffer by hand.

    pip install diffusers accelerate transformers
    python -m benchmarks.gpu.offloaders -o traces/offloaders [--only group,buffer] [--layers 8] [--width 3072]

A/Bs by `hprof.ab`, on blocks of made-up weights (no download): `group` (off: group offloading in line, on: with
`use_stream`), `accelerate` (off: cpu_offload, on: resident, the limit) and `buffer` (off: each layer's weights copied
when they are needed, on: one layer ahead). Each prints the report's summary and what the recorded call of each arm
copied and hid. Without a GPU (`--device cpu`) copies are the host's: times are told, and nothing of devices; there
`group` has no stream, and is held against resident weights.

Each pair runs in a process of its own, whose calls are told with their seconds. One that has not ended within `--limit`
seconds says where it stands and is ended, and the next begins. In line, `group` moves weights back into fresh pageable
memory after every block, which takes longest.
"""

from __future__ import annotations

import argparse
import faulthandler
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import torch

import hprof

Step = Callable[[], object]
_PATTERN: Final = 1 << 20  # elements that repeat in a weight
_GRACE_S: Final = 15  # for a process to say where it stands


class Blocks(torch.nn.Module):
    """Transformer-like blocks, two large products each, called in turn."""

    def __init__(self, n_layers: int, width: int) -> None:
        super().__init__()
        with torch.device("meta"):  # PyTorch's own initialisation of a billion weights takes ten seconds
            products = [(torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)) for _ in range(n_layers)]
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(up, torch.nn.GELU(), down) for up, down in products)
        self.to(torch.bfloat16).to_empty(device="cpu").eval().requires_grad_(False)
        for parameter in self.parameters():
            fill(parameter, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (tokens, width)."""
        for block in self.blocks:
            x = block(x)
        return x


def fill(weight: torch.Tensor, width: int) -> None:
    """Random values of the size that keeps activations finite, the same over and over: as fast as memory is."""
    pattern = (torch.randn(_PATTERN) / width**0.5).to(weight.dtype)
    flat = weight.view(-1)
    for at in range(0, flat.numel(), _PATTERN):
        piece = flat[at : at + _PATTERN]
        piece.copy_(pattern[: piece.numel()])


def group_steps(n_layers: int, width: int, x: torch.Tensor) -> dict[str, Step]:
    """diffusers: blocks in groups, copied when they are needed or one ahead on a stream of their own."""
    from diffusers.hooks import apply_group_offloading

    def step(*, use_stream: bool) -> Step:
        model = Blocks(n_layers, width)
        options: dict[str, Any] = {"offload_type": "block_level", "num_blocks_per_group": 1, "use_stream": use_stream}
        apply_group_offloading(model, x.device, torch.device("cpu"), **options)
        return lambda: model(x)

    if x.device.type == "cuda":
        return {"off": step(use_stream=False), "on": step(use_stream=True)}
    resident = Blocks(n_layers, width)
    return {"off": step(use_stream=False), "on": lambda: resident(x)}


def accelerate_steps(n_layers: int, width: int, x: torch.Tensor) -> dict[str, Step]:
    """accelerate: every module's weights are copied when it is called; against the same model resident."""
    from accelerate import cpu_offload

    model = Blocks(n_layers, width)
    cpu_offload(model, execution_device=x.device)
    resident = Blocks(n_layers, width).to(x.device)
    return {"off": lambda: model(x), "on": lambda: resident(x)}


def buffer_steps(n_layers: int, width: int, x: torch.Tensor) -> dict[str, Step]:
    """By hand: two slots, weights copied in line, or into the one slot while the other is computed with."""
    is_cuda = x.device.type == "cuda"
    weights = [torch.empty(width, 4 * width, dtype=x.dtype, pin_memory=is_cuda) for _ in range(n_layers)]
    for weight in weights:
        fill(weight, width)
    slots = [torch.empty_like(weights[0], device=x.device) for _ in range(2)]
    copier = _CudaCopier() if is_cuda else _HostCopier()

    def in_line() -> torch.Tensor:
        y = x
        for layer, weight in enumerate(weights):
            with hprof.range(f"layer {layer}"):
                slots[0].copy_(weight, non_blocking=True)
                y = (y @ slots[0])[:, :width]
        return y

    def ahead() -> torch.Tensor:
        y = x
        copier.copy(slots[0], weights[0])
        for layer in range(n_layers):
            with hprof.range(f"layer {layer}"):
                copier.wait()
                if layer + 1 < n_layers:
                    copier.copy(slots[(layer + 1) % 2], weights[layer + 1])
                y = (y @ slots[layer % 2])[:, :width]
        return y

    return {"off": in_line, "on": ahead}


class _CudaCopier:
    """Copies on a stream of its own, behind what the slot was last used for."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._copied = torch.cuda.Event()

    def copy(self, slot: torch.Tensor, weight: torch.Tensor) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            slot.copy_(weight, non_blocking=True)
            self._copied.record()

    def wait(self) -> None:
        torch.cuda.current_stream().wait_event(self._copied)


class _HostCopier:
    """Copies in a thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)

    def copy(self, slot: torch.Tensor, weight: torch.Tensor) -> None:
        self._copied = self._pool.submit(slot.copy_, weight)

    def wait(self) -> None:
        self._copied.result()


PAIRS = {"group": group_steps, "accelerate": accelerate_steps, "buffer": buffer_steps}


def measure(name: str, chosen: argparse.Namespace) -> None:
    """One pair, in this process; prints what came of it."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.1f} s] {name}: {text}", flush=True)

    faulthandler.dump_traceback_later(chosen.limit, exit=True)
    x = torch.randn(chosen.tokens, chosen.width, dtype=torch.bfloat16, device=chosen.device)
    with torch.no_grad():
        steps = PAIRS[name](chosen.layers, chosen.width, x)
        say("the weights are there")
        with hprof.ab(f"{chosen.output}-{name}", chosen.repetitions, force=True) as ab:
            for arm, step in steps.items():
                ab.arm(arm, step, before=partial(say, arm))  # ahead of each call, not timed
    say("all calls and their recording are done")
    report = hprof.open(str(ab.capture)).report()
    print(name, *report.recorded, report.summary, sep="\n", flush=True)
    faulthandler.cancel_dump_traceback_later()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="traces/offloaders")
    parser.add_argument("--only", default=",".join(PAIRS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=3072)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("-r", "--repetitions", type=int, default=6)
    parser.add_argument("--limit", type=float, default=40, help="seconds for a pair")
    chosen = parser.parse_args()
    names = chosen.only.split(",")
    if len(names) == 1:
        measure(names[0], chosen)
        return
    failed = [name for name in names if not _measured_apart(name, chosen.limit)]
    if failed:
        sys.exit(f"no result of {', '.join(failed)}")


def _measured_apart(name: str, limit_s: float) -> bool:
    """The pair in a process of its own, with this one's arguments; whether it ended well."""
    words = [sys.executable, "-m", "benchmarks.gpu.offloaders", *sys.argv[1:], "--only", name]
    try:
        return subprocess.run(words, check=False, timeout=limit_s + _GRACE_S).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"{name}: ended after {limit_s + _GRACE_S:.0f} s", flush=True)
        return False


if __name__ == "__main__":
    main()
