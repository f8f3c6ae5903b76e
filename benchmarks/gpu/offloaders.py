"""What PyTorch's offloaders hide: diffusers' group offloading with and without a stream, accelerate's cpu_offload.

    pip install diffusers accelerate transformers
    python -m benchmarks.gpu.offloaders -o traces/offloaders [--only group|accelerate] [--layers 12] [--width 3072]

Two A/Bs by `hprof.ab`, on blocks of random weights (no download): `group` (off: group offloading in line, on: with
`use_stream`) and `accelerate` (off: cpu_offload, on: resident, the limit). Each prints the report's summary and what
the recorded call of each arm copied and hid.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

import hprof

Step = Callable[[], object]


class Blocks(torch.nn.Module):
    """Transformer-like blocks, two large products each, called in turn."""

    def __init__(self, n_layers: int, width: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))
            for _ in range(n_layers)
        )
        self.to(torch.bfloat16).eval().requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (tokens, width)."""
        for block in self.blocks:
            x = block(x)
        return x


def group_steps(n_layers: int, width: int, x: torch.Tensor) -> dict[str, Step]:
    """diffusers: blocks in groups, copied when they are needed or one ahead on a stream of their own."""
    from diffusers.hooks import apply_group_offloading

    def step(*, use_stream: bool) -> Step:
        model = Blocks(n_layers, width)
        options: dict[str, Any] = {"offload_type": "block_level", "num_blocks_per_group": 1, "use_stream": use_stream}
        apply_group_offloading(model, torch.device("cuda"), torch.device("cpu"), **options)
        return lambda: model(x)

    return {"off": step(use_stream=False), "on": step(use_stream=True)}


def accelerate_steps(n_layers: int, width: int, x: torch.Tensor) -> dict[str, Step]:
    """accelerate: every module's weights are copied when it is called; against the same model resident."""
    from accelerate import cpu_offload

    model = Blocks(n_layers, width)
    cpu_offload(model, execution_device=torch.device("cuda"))
    resident = Blocks(n_layers, width).cuda()
    return {"off": lambda: model(x), "on": lambda: resident(x)}


PAIRS = {"group": group_steps, "accelerate": accelerate_steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="traces/offloaders")
    parser.add_argument("--only", choices=PAIRS)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=3072)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("-r", "--repetitions", type=int, default=8)
    chosen = parser.parse_args()
    x = torch.randn(chosen.tokens, chosen.width, dtype=torch.bfloat16, device="cuda")
    for name in [chosen.only] if chosen.only else PAIRS:
        with torch.inference_mode():
            steps = PAIRS[name](chosen.layers, chosen.width, x)
            with hprof.ab(f"{chosen.output}-{name}", chosen.repetitions, force=True) as ab:
                for arm, step in steps.items():
                    ab.arm(arm, step)
        report = hprof.open(str(ab.capture)).report()
        print(name, *report.recorded, report.summary, sep="\n")


if __name__ == "__main__":
    main()
