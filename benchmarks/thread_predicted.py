"""The thread as a test: `python -m benchmarks.thread_predicted docs/thread-predicted.md`.

From the published numbers of one measurement of llama.cpp with prefetched weights (117.6 B parameters, 256 experts,
28 expert layers in host memory, two RTX 3090), two are fitted to (the link by the time to first token, the GPUs by the
prefill rate, both without prefetch) and the others predicted, by hprof's own order of steps and copies. Also a napkin
series that users of llama.cpp repeat: bytes over the link, plus tokens over the GPU's rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click
import numpy as np
from scipy.optimize import least_squares

from executor.devices.factory import DeviceOptions
from executor.devices.known import find_gpu
from executor.devices.sim import SimMachine
from executor.placement.place import Placement
from profiler.planning.plan import RunPlan, plan_run
from profiler.planning.request import GridPoint, PlacementOptions, RunRequest
from profiler.predicting.costs import RateCosts
from profiler.predicting.expert_use import use_of_observed
from profiler.predicting.predictor import ArmPredictor, Prediction

SHORT, TEN, NINETY = (GridPoint(n, n_gen, 2048, 0) for n, n_gen in ((34, 65), (10_240, 0), (92_160, 0)))
HOST_LAYERS: Final = 28
HOST_GB_S: Final = SimMachine().host_memory_gb_s
MIB: Final = 2**20
# what the thread says of distinct experts: a share of all, at so many tokens of a ubatch
DISTINCT: Final = {34: 0.44, 2048: 0.84}


@dataclass(frozen=True, slots=True)
class Published:
    """One figure of the thread, and what is predicted for it."""

    what: str
    measured: float
    predicted: float
    unit: str
    is_fitted: bool = False

    def row(self) -> str:
        error = "fitted" if self.is_fitted else f"{(self.predicted / self.measured - 1) * 100:+.1f} %"
        measured, predicted = (f"{value:,.{0 if value > 2000 else 1}f}" for value in (self.measured, self.predicted))
        return f"| {self.what} | {measured} {self.unit} | {predicted} {self.unit} | {error} |"


class ThreadModel:
    """The measured setup: rates of two RTX 3090 but for those that are fitted."""

    def __init__(self) -> None:
        device = DeviceOptions("sim", 2, machine=SimMachine())
        overrides = rf"blk\.({'|'.join(map(str, range(1, 1 + HOST_LAYERS)))})\.ffn_(gate|up|down)_exps=CPU"
        request = RunRequest(
            cells=(SHORT, TEN, NINETY), device=device, model="laguna-s-2.1", arms=("off",),
            placements=(PlacementOptions(overrides),),
        )  # fmt: skip
        self.plan: RunPlan = plan_run(request)
        self.placement: Placement = self.plan.setups[0].placement
        moe = next(layer.moe for layer in self.plan.model.shape.layers if layer.moe is not None)
        n_layers = sum(layer.moe is not None for layer in self.plan.model.shape.layers)
        seen = np.array([share * moe.n_experts for share in DISTINCT.values()])
        self.use = use_of_observed(np.array([*map(float, DISTINCT)]), seen, n_layers, moe.n_experts, moe.n_used)

    def predict(self, machine: SimMachine, arm: str, cells: Sequence[GridPoint]) -> list[Prediction]:
        costs = RateCosts(machine, self.plan.session.dtype)
        return ArmPredictor(self.plan, arm, self.placement, costs, self.use).predict(arm, cells)

    def fitted(self) -> SimMachine:
        """The machine whose link and products give the two figures that are fitted to."""
        gpu = find_gpu("rtx3090")
        start = SimMachine(memory_gb_s=gpu.memory_gb_s, host_call_us=0.0, host_memory_gb_s=HOST_GB_S)

        def machine(logs: np.ndarray) -> SimMachine:
            link, gemm = np.exp(logs)
            return replace(start, link_gb_s=float(link), gemm_tflop_s=float(gemm))

        def misses(logs: np.ndarray) -> list[float]:
            short, ten = self.predict(machine(logs), "off", [replace(SHORT, n_gen=0), TEN])
            return [_ms(short) / 1085 - 1, _rate(ten) / 902.5 - 1]

        return machine(least_squares(misses, np.log([13.0, gpu.gemm_tflop_s])).x)


def published(model: ThreadModel, machine: SimMachine) -> list[Published]:
    """Every figure of the thread beside its prediction."""
    cells = [SHORT, TEN, NINETY]
    off, on, whole, gated = (model.predict(machine, arm, cells) for arm in ("off", "on", "off-whole", "gated"))
    copied = {arm: sum(_mib(one) for one in found[:1]) for arm, found in (("off", off), ("on", on), ("whole", whole))}
    return [
        Published("TTFT, short prompt, off", 1085, _ms(off[0]), "ms", is_fitted=True),
        Published("prefill at 10K, off", 902.5, _rate(off[1]), "t/s", is_fitted=True),
        Published("bytes, short prompt, off", 13_668, copied["off"], "MiB"),
        Published("bytes, short prompt, on", 28_128, copied["on"], "MiB"),
        Published("bytes, short prompt, off-whole", 30_774, copied["whole"], "MiB"),
        Published("TTFT, short prompt, on", 1604, _ms(on[0]), "ms"),
        Published("TTFT, short prompt, off-whole", 1725, _ms(whole[0]), "ms"),
        Published("TTFT, short prompt, gated", 1096, _ms(gated[0]), "ms"),
        Published("prefill at 10K, on", 1035.3, _rate(on[1]), "t/s"),
        Published("prefill at 90K, off", 734.2, _rate(off[2]), "t/s"),
        Published("prefill at 90K, on", 835.7, _rate(on[2]), "t/s"),
        Published("decode, off", 38.40, _decode(off[0]), "t/s"),
        Published("decode, on", 36.55, _decode(on[0]), "t/s"),
    ]


def crossover(model: ThreadModel, machine: SimMachine) -> tuple[int, int]:
    """The ubatches between which prefetch begins to pay, of powers of two."""
    sizes = [32, 64, 128, 256, 512, 1024, 2048]
    cells = [GridPoint(ub, 0, ub, 0) for ub in sizes]
    off, on = ([_ms(one) for one in model.predict(machine, arm, cells)] for arm in ("off", "on"))
    ahead = [ub for ub, a, b in zip(sizes, off, on, strict=True) if b < a]
    first = min(ahead) if ahead else sizes[-1]
    return max([ub for ub in sizes if ub < first], default=0), first


def napkin(ubatch: int, n_bytes: float = 360e9, link_gb_s: float = 15.0, rate: float = 400.0) -> float:
    """Tokens a second by the napkin: the whole model over the link, then the ubatch at the GPU's rate."""
    return ubatch / (n_bytes / (link_gb_s * 1e9) + ubatch / rate)


def page() -> str:
    """The page, as Markdown."""
    model = ThreadModel()
    machine = model.fitted()
    low, high = crossover(model, machine)
    rows = published(model, machine)
    errors = [abs(row.predicted / row.measured - 1) for row in rows if not row.is_fitted]
    napkins = {512: 20.2, 1024: 38.5, 2048: 70.4, 4096: 119.8}
    return f"""# The thread, predicted

Written by `python -m benchmarks.thread_predicted docs/thread-predicted.md`.

A user measured llama.cpp with prefetched weights: Laguna-S-2.1 (117.6 B parameters, 256 experts, top 10, 48 layers) at
IQ4_NL, two RTX 3090, {HOST_LAYERS} expert layers in host memory. Two of the published figures are fitted to, and give
a link of {machine.link_gb_s:.1f} GB/s and {machine.gemm_tflop_s:.1f} TFLOP/s of products; the others are predicted, by
hprof's order of steps and copies. Median error of what was not fitted: {np.median(errors) * 100:.0f} %.

| figure | measured | predicted | error |
|---|---|---|---|
{chr(10).join(row.row() for row in rows)}
| crossover of off and on | between 250 and 1,040 tokens | between {low} and {high} | |

The shares of distinct experts (44 % at 34 tokens, 84 % at a ubatch of 2,048) are the thread's own.

## What the thread leaves unknown

* The ubatch of the long prompts: 2,048 is assumed, at which the thread tells the share of distinct experts.
* Which {HOST_LAYERS} layers are in host memory (the first with experts, here) and the quant types of single tensors.
  At 4.5 bits a weight {HOST_LAYERS} layers hold {rows[4].predicted:,.0f} MiB, where the run copied 30,774 MiB with
  everything whole: part of the weights takes fewer bits, or fewer layers were copied. The fitted link takes this up and
  is told too fast by as much.
* How fast the host's memory is: decode is predicted with sim's default of {HOST_GB_S:.0f} GB/s, over the stored
  bytes.
* What the slots cost: the thread's decode with prefetch is 4.8 % slower because they take memory from resident layers.
  Here both have the same layers in host memory.
* llama.cpp copies tensor by tensor (three splits a layer); here a layer's experts are one copy.

## The napkin

The model that users repeat: `t = bytes / link + ubatch / rate`, for 335 GiB over 15 GB/s and a GPU of 400 t/s.

| ubatch | told | worked out |
|---|---|---|
{chr(10).join(f"| {ub:,} | {told} t/s | {napkin(ub):.1f} t/s |" for ub, told in napkins.items())}
"""


def _ms(one: Prediction) -> float:
    return (one.ttft_ns or 0.0) / 1e6


def _rate(one: Prediction) -> float:
    return one.cell.n_prompt / one.prefill_ns * 1e9 if one.prefill_ns else 0.0


def _decode(one: Prediction) -> float:
    return one.cell.n_decoded / one.decode_ns * 1e9 if one.decode_ns else 0.0


def _mib(one: Prediction) -> float:
    """What the prompt copies; a token's own trips to the CPU are left out."""
    row = 28 * 3072 * 2
    return (one.bytes_h2d - one.cell.n_decoded * row) / MIB


@click.command()
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
def main(target: Path) -> None:
    """Write the page into the file TARGET, as Markdown."""
    target.write_text(page(), encoding="utf-8")
    click.echo(f"Wrote {target}")


if __name__ == "__main__":
    main()
