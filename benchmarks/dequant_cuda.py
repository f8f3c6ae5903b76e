"""Dequantisation on an NVIDIA GPU: the fused kernel beside PyTorch's operations and beside a copy, in one run.

`python -m benchmarks.dequant_cuda [--types Q4_0,Q6_K] [--json FILE]`; `--sweep` times other tilings of the kernel.
Exit code 1: a type is not equal bit for bit, or the 267M weights of Q4_0 take more than 0.35 ms.
"""

from __future__ import annotations

import importlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch

from executor.quants import QUANTS, fill_random, row_bytes, unpack
from executor.quants import dispatch as dequant
from executor.triton_support import has_triton

if TYPE_CHECKING:
    from executor.quants.fused import Tiling

MATRIX = (3 * 17408, 5120)  # one dense FFN layer: gate, up and down
STACK = (128, 768, 2048)  # one projection of an MoE layer
USED = (64, 8)  # experts in use: a prompt's ubatch, and one token
TARGET_MS = 0.35  # for MATRIX in Q4_0
DTYPE = torch.bfloat16
SWEEP_TYPES = ("Q4_0", "Q4_K", "MXFP4")
SWEEP_WEIGHTS, SWEEP_WARPS, SWEEP_TILES = (2048, 4096, 8192), (4, 8), (1, 4, 8)


@dataclass(frozen=True)
class DequantRow:
    """One type and shape. `floor_ms` is what a copy takes that reads and writes as many bytes in all."""

    quant: str
    n_bytes: int
    eager_ms: float
    fused_ms: float
    floor_ms: float
    exact: bool

    @property
    def gb_s(self) -> float:
        return self.n_bytes / self.fused_ms / 1e6


class Clock:
    """Times calls by events, after a copy that empties the L2 and lets the host run ahead of the device."""

    def __init__(self, device: torch.device) -> None:
        self._from = torch.ones(1 << 29, dtype=torch.uint8, device=device)
        self._to = torch.empty_like(self._from)
        self.copy_gb_s = 2 * self._from.numel() / self.ms(lambda: self._to.copy_(self._from)) / 1e6

    def ms(self, call: Callable[[], object], n: int = 20) -> float:
        """The median of `n` calls after two untimed ones."""
        call(), call()
        spans = [self._span(call) for _ in range(n)]
        torch.cuda.synchronize()
        return float(statistics.median(start.elapsed_time(end) for start, end in spans))

    def _span(self, call: Callable[[], object]) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._to.copy_(self._from)
        start.record()
        call()
        end.record()
        return start, end


@dataclass(frozen=True)
class Stack:
    """An expert stack inside a slot that interleaves three projections; used experts are evenly spaced."""

    raw: torch.Tensor
    flags: torch.Tensor
    place_of: torch.Tensor


def random_matrix(quant: str, device: torch.device) -> torch.Tensor:
    """(rows, row_bytes) of MATRIX."""
    n_rows, n_cols = MATRIX
    raw = torch.empty(n_rows * row_bytes(quant, n_cols), dtype=torch.uint8)
    fill_random(raw, quant, 0.02, seed=1)
    return raw.view(n_rows, -1).to(device)


def as_stack(matrix: torch.Tensor, quant: str, n_used: int) -> Stack:
    """The first bytes of `matrix`, laid out anew."""
    n_experts, n_rows, n_cols = STACK
    width = row_bytes(quant, n_cols)
    one = n_rows * width
    slot = torch.empty(3 * n_experts * one, dtype=torch.uint8, device=matrix.device)
    raw = slot.as_strided((n_experts, n_rows, width), (3 * one, width, 1), one)
    raw.copy_(matrix.flatten()[: n_experts * one].view_as(raw))
    experts = torch.arange(n_experts, dtype=torch.int32, device=matrix.device)
    return Stack(raw, (experts % (n_experts // n_used) == 0).to(torch.uint8), experts)


def matrix_row(quant: str, raw: torch.Tensor, clock: Clock) -> DequantRow:
    """All weights of MATRIX."""
    fused = partial(dequant.dequantise, raw, quant, DTYPE)
    eager = partial(unpack.dequantise, raw, quant, DTYPE)
    return _row(quant, raw.numel(), fused(), eager(), fused, eager, clock)


def stack_row(quant: str, stack: Stack, clock: Clock) -> DequantRow:
    """The used experts of STACK; PyTorch's operations cannot leave the others out without waiting for the flags."""
    fused = partial(dequant.dequantise_experts, stack.raw, quant, DTYPE, stack.flags, stack.place_of)
    eager = partial(unpack.dequantise, stack.raw, quant, DTYPE)
    used = stack.flags.bool()
    n_read = int(used.sum()) * stack.raw[0].numel()
    return _row(quant, n_read, fused()[used], eager()[used], fused, eager, clock)


def _row(
    quant: str,
    n_read: int,
    got: torch.Tensor,
    wanted: torch.Tensor,
    fused: Callable[[], object],
    eager: Callable[[], object],
    clock: Clock,
) -> DequantRow:
    n_bytes = n_read + got.nbytes
    exact = torch.equal(got.view(torch.int16), wanted.view(torch.int16))
    del got, wanted
    return DequantRow(quant, n_bytes, clock.ms(eager, n=5), clock.ms(fused), n_bytes / clock.copy_gb_s / 1e6, exact)


def host_us(device: torch.device, n: int = 500) -> dict[str, float]:
    """What a call costs the host, on weights so few that the device never holds it up."""
    raw = torch.zeros(8, 16, row_bytes("Q4_0", 256), dtype=torch.uint8, device=device)
    flags = torch.ones(8, dtype=torch.uint8, device=device)
    calls: dict[str, Callable[[], object]] = {
        "dequantise": lambda: dequant.dequantise(raw, "Q4_0", DTYPE),
        "dequantise_experts": lambda: dequant.dequantise_experts(raw, "Q4_0", DTYPE, flags, None),
    }
    return {name: _host_us(call, n) for name, call in calls.items()}


def _host_us(call: Callable[[], object], n: int) -> float:
    samples = []
    for _ in range(5):
        call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(n):
            call()
        samples.append((time.perf_counter() - start) / n * 1e6)
    return statistics.median(samples)


def sweep(quant: str, raw: torch.Tensor, clock: Clock) -> list[dict[str, Any]]:
    """Milliseconds of the matrix and of the stacks for each tiling, the fastest matrix first."""
    fused: Any = importlib.import_module("executor.quants.fused")
    stacks = {f"{n_used}_used_ms": as_stack(raw, quant, n_used) for n_used in USED}

    def row(tiling: Tiling) -> dict[str, Any]:
        matrix_ms = clock.ms(lambda: fused.dequantise(raw, quant, DTYPE, tiling), n=10)
        calls = {
            name: partial(fused.dequantise_experts, stack.raw, quant, DTYPE, stack.flags, stack.place_of, tiling)
            for name, stack in stacks.items()
        }
        stack_ms = {name: clock.ms(call, n=10) for name, call in calls.items()}
        return {"quant": quant, **tiling._asdict(), "matrix_ms": matrix_ms, **stack_ms}

    tilings = itertools.product(SWEEP_WEIGHTS, SWEEP_WARPS, SWEEP_TILES)
    return sorted((row(fused.Tiling(*tiling)) for tiling in tilings), key=itemgetter("matrix_ms"))


def table(title: str, rows: Iterable[DequantRow]) -> str:
    lines = [title, f"{'type':8}{'eager ms':>10}{'fused ms':>10}{'GB/s':>8}{'floor ms':>10}{'of floor':>10}  bits"]
    lines += [
        f"{r.quant:8}{r.eager_ms:10.3f}{r.fused_ms:10.3f}{r.gb_s:8.0f}{r.floor_ms:10.3f}{r.floor_ms / r.fused_ms:10.0%}"
        f"  {'equal' if r.exact else 'DIFFERENT'}"
        for r in rows
    ]
    return "\n".join(lines)


def run(types: Iterable[str], device: torch.device) -> dict[str, Any]:
    """All figures: a row a type for the matrix, and for the stack by how many experts are used."""
    clock = Clock(device)
    matrices: list[DequantRow] = []
    stacks: dict[int, list[DequantRow]] = {n_used: [] for n_used in USED}
    for quant in types:
        raw = random_matrix(quant, device)
        matrices.append(matrix_row(quant, raw, clock))
        for n_used, rows in stacks.items():
            rows.append(stack_row(quant, as_stack(raw, quant, n_used), clock))
    return {"copy_gb_s": clock.copy_gb_s, "host_us": host_us(device), "matrix": matrices, "stack": stacks}


def run_sweep(types: Iterable[str], device: torch.device) -> list[dict[str, Any]]:
    clock = Clock(device)
    return [row for quant in types for row in sweep(quant, random_matrix(quant, device), clock)]


def _print_sweep(rows: list[dict[str, Any]]) -> None:
    print("".join(f"{name:>12}" for name in rows[0]))
    for row in rows:
        print("".join(f"{value:12.4f}" if isinstance(value, float) else f"{value:>12}" for value in row.values()))


def _print_figures(figures: dict[str, Any]) -> None:
    print(f"copy {figures['copy_gb_s']:.0f} GB/s, bytes read and bytes written (the floor)")
    print(table(f"\n{MATRIX[0]} x {MATRIX[1]} weights to bfloat16", figures["matrix"]))
    for n_used, rows in figures["stack"].items():
        print(table(f"\n{STACK[0]} experts of {STACK[1]} x {STACK[2]}, {n_used} of them used (eager: all)", rows))
    print("\nhost, microseconds a call: " + ", ".join(f"{name} {us:.1f}" for name, us in figures["host_us"].items()))


def _failures(figures: dict[str, Any]) -> list[str]:
    rows = itertools.chain(figures["matrix"], *figures["stack"].values())
    wrong = [f"{row.quant} is not equal bit for bit" for row in rows if not row.exact]
    q4_0_ms = max((row.fused_ms for row in figures["matrix"] if row.quant == "Q4_0"), default=0.0)
    return [*wrong, f"Q4_0 takes {q4_0_ms:.3f} ms, more than {TARGET_MS}"] if q4_0_ms > TARGET_MS else wrong


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--types", default=None, help="Quant types, separated by commas; all, or three with --sweep.")
@click.option("--sweep", "sweeping", is_flag=True, help="Time other tilings instead.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all figures here as well.")
def main(types: str | None, sweeping: bool, json_path: Path | None) -> None:
    """Time fused dequantisation on the current CUDA device."""
    if not (torch.cuda.is_available() and has_triton()):
        print("dequant_cuda: no NVIDIA GPU, or no Triton: nothing measured")
        return
    device = torch.device("cuda", torch.cuda.current_device())
    chosen = types.split(",") if types else list(SWEEP_TYPES if sweeping else QUANTS)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    failures: list[str] = []
    if sweeping:
        result: Any = run_sweep(chosen, device)
        _print_sweep(result)
    else:
        result = run(chosen, device)
        _print_figures(result)
        failures = _failures(result)
    if json_path is not None:
        figures = {"device": torch.cuda.get_device_name(), "command": sys.argv, "result": result}
        json_path.write_text(json.dumps(figures, default=asdict, indent=1) + "\n")
    for failure in failures:
        print(f"FAILED: {failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
