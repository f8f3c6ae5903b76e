"""Decode on the host: one token through a layer's experts, and through a dense FFN, whose weights stay in host memory.

    python benchmarks/host_decode.py
    python benchmarks/host_decode.py --quants Q4_0,Q8_0 --threads 16 --rounds 50

`now` is what the engine does: where there are AVX-512 and a C++ compiler, all experts at once from the bytes as they
are stored. `PyTorch` is what it does elsewhere: 4-bit types multiplied as packed int4, others as bf16, expert by
expert. `dequantised` is the plain way: everything in bf16, one product a matrix. All run by turns in this process, over
layers that together do not fit in a cache, on the same rows; medians. GB/s are of the bytes that the file has for the
weights that a token meets; `of memory` is the share of the speed at which this machine sums a large tensor.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import torch

from executor.host import stored
from executor.host.steps import HostStepWeights, HostWeights, host_experts, host_ffn, host_products
from executor.layers.dense import dense_ffn
from executor.layers.moe import experts
from executor.layers.router import Routed
from executor.model import Model, MoeFfn
from executor.models.load import load_model
from executor.placement.place import place
from executor.reference import KeptWeights
from executor.weights.transfer_units import TransferUnit, build_transfer_units

BF16 = torch.bfloat16
MOE, DENSE = ("qwen3-30b-a3b", 2), ("llama-3.1-8b", 3)
_SUMMED_BYTES = 1 << 29


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One layer's figures: times in seconds a layer and token, bytes as the file has them."""

    layer: str
    quant: str
    product: str
    n_bytes: int
    now_s: float
    pytorch_s: float
    dequantised_s: float


def _dequantised(weights: HostWeights, model: Model, layer: int) -> KeptWeights:
    """The weights in bf16, each tensor by itself."""
    prefix = f"blk.{layer}."
    names = [name for name in (tensor.name for tensor in model.tensors.values()) if _is_read(name, prefix)]
    return KeptWeights({name.removeprefix(prefix): weights.get(name) for name in names})


def _is_read(name: str, prefix: str) -> bool:
    return name.startswith(prefix + "ffn_") and "ffn_gate_inp" not in name


class Layers:
    """A model's first layers in host memory, prepared both ways."""

    def __init__(self, spec: str, quant: str, n_layers: int) -> None:
        self.model = load_model(spec, quant=quant, layers=n_layers)
        self.units = _units(self.model)
        self.weights = HostWeights(self.model, BF16, self.units)
        self.weights.prepare(self.units)
        with patch.object(stored, "is_available", return_value=False):
            self.pytorch = HostWeights(self.model, BF16, self.units)
            self.pytorch.prepare(self.units)
        self.dequantised = [_dequantised(self.weights, self.model, layer) for layer in range(n_layers)]
        self.moe = self.model.shape.layers[0].ffn
        self.x = torch.randn(1, self.model.shape.hidden, generator=torch.Generator().manual_seed(1)).to(BF16)

    def ways(self, layer: int) -> tuple[Callable[[], torch.Tensor], ...]:
        """The three ways to compute one layer."""
        wide, moe, eps = self.dequantised[layer], self.moe, 1e-5
        kept = [(weights, HostStepWeights(weights, layer)) for weights in (self.weights, self.pytorch)]
        if not isinstance(moe, MoeFfn):
            ffns = [partial(host_ffn, self.x, of.products(layer, "ffn"), one, moe, eps) for of, one in kept]
            return *ffns, lambda: dense_ffn(self.x, wide, moe, eps)
        ids = torch.randperm(moe.n_experts)[: moe.n_used].unsqueeze(0)
        routed = Routed(self.x, ids, torch.full(ids.shape, 1 / moe.n_used))
        each = [partial(host_experts, routed, of.products(layer, "experts"), moe, one) for of, one in kept]
        return *each, lambda: experts(routed, wide, moe)

    def read_bytes(self) -> int:
        """What a token reads of one layer."""
        n_bytes = self.units[0].n_bytes
        return n_bytes * self.moe.n_used // self.moe.n_experts if isinstance(self.moe, MoeFfn) else n_bytes


def _units(model: Model) -> list[TransferUnit]:
    from executor.devices.cpu import CpuDevice

    device = CpuDevice(n_threads=1)
    try:
        return build_transfer_units(model, place(model.tensors), device, "none")
    finally:
        device.close()


def measure(spec: str, n_layers: int, quant: str, rounds: int) -> DecodeRow:
    """All ways by turns, over all layers in turn."""
    layers = Layers(spec, quant, n_layers)
    taken: tuple[list[float], ...] = ([], [], [])
    for round_ in range(rounds + 2):
        _check(*(way() for way in layers.ways(round_ % n_layers)))
        ways = layers.ways((round_ + 1) % n_layers)  # other weights than the check left in the cache
        for way, times in zip(ways, taken, strict=True):
            start = time.perf_counter()
            way()
            times.append(time.perf_counter() - start)
    product = host_products(layers.model, layers.units, BF16)[quant]
    kind = "experts" if isinstance(layers.moe, MoeFfn) else "dense FFN"
    medians = (statistics.median(times[2:]) for times in taken)
    return DecodeRow(f"{spec} {kind}", quant, product, layers.read_bytes(), *medians)


def _check(*results: torch.Tensor) -> None:
    wanted = results[-1].float()
    error = max(float((found.float() - wanted).norm() / wanted.norm()) for found in results)
    if error > 0.02:
        sys.exit(f"the ways differ by {error:.4f}, more than bf16 rounds: do not trust the times")


def memory_bytes_per_s() -> float:
    """The fastest of a few sums over a tensor that no cache holds."""
    numbers = torch.ones(_SUMMED_BYTES // 8, dtype=torch.int64)
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        numbers.sum()
        best = min(best, time.perf_counter() - start)
    return _SUMMED_BYTES / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quants", default="Q4_0,Q4_K,Q6_K,Q8_0,MXFP4")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        memory = memory_bytes_per_s()
        print(f"torch {torch.__version__}, {options.threads} threads, memory read at {memory / 1e9:.1f} GB/s")
        print(
            f"{'layer':<26} {'type':<6} {'product':<8} {'now':>9} {'PyTorch':>10} {'dequantised':>12} {'GB/s':>6} "
            f"{'of memory':>9}"
        )
        for spec, n_layers in (MOE, DENSE):
            for quant in options.quants.split(","):
                row = measure(spec, n_layers, quant, options.rounds)
                speed = row.n_bytes / row.now_s
                print(
                    f"{row.layer:<26} {row.quant:<6} {row.product:<8} {row.now_s * 1e3:>6.2f} ms "
                    f"{row.pytorch_s * 1e3:>7.2f} ms {row.dequantised_s * 1e3:>9.2f} ms {speed / 1e9:>6.1f} "
                    f"{speed / memory:>8.0%}"
                )


if __name__ == "__main__":
    main()
