"""Decoded tokens a second against what each arm has to reach, beside llama.cpp where a llama-bench is given.

    python -m benchmarks.gpu.decode [--llama-bench PATH] [--only experts] [--threads N] [--json FILE]

A line a figure: tokens a second, microseconds a token, what it is compared with, the ratio and the target. What is
compared runs on the same weights in the same process, in turn; llama.cpp on the same file, which is made for it. Arms
among each other get synthetic routing, as the routers of random weights choose the same experts for every token; beside
llama.cpp the model's own decides.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch

from benchmarks.gpu.common import Workload, open_session, passes
from benchmarks.gpu.gguf_file import dense_shape, moe_shape, synthetic, write_gguf
from benchmarks.gpu.llama_bench import EXPERTS_ON_HOST, FFN_ON_HOST, LlamaBench
from executor.model import Model
from executor.models.load import load_model
from executor.policies.base import PolicyOptions

FFN_OVERRIDES = "ffn_(gate|up|down).*=CPU"
CACHED_SHARE = 1 / 4  # of the experts' bytes


@dataclass(frozen=True, slots=True)
class DecodeFigure:
    """One figure. None: there is nothing to compare it with."""

    what: str
    file: str  # its digest
    tokens_per_s: float
    us_per_token: float
    compared_with: str
    their_tokens_per_s: float | None
    ratio: float | None
    target: float

    @property
    def is_reached(self) -> bool | None:
        """Whether it is as fast as it has to be."""
        return None if self.ratio is None else self.ratio >= self.target


@dataclass(frozen=True, slots=True)
class DecodeRuns:
    """How each model decodes, with `n_gen` tokens a pass."""

    peer: LlamaBench
    n_gen: int = 49
    n_pairs: int = 3

    def dense(self, model: Model) -> Iterator[DecodeFigure]:
        """Everything resident; and the FFN on the CPU."""
        resident = self._speeds(model, ["full"])["full"]
        yield self._beside_peer("dense, resident", resident, model, (), 1.2)
        on_host = self._speeds(model, ["cpu"], overrides=FFN_OVERRIDES)["cpu"]
        yield self._beside_peer("dense, FFN on the CPU", on_host, model, FFN_ON_HOST, 1.0)

    def experts(self, model: Model) -> Iterator[DecodeFigure]:
        """Everything resident; experts on the CPU; CPU and link sharing them."""
        speeds = self._speeds(model, ["full", "cpu"], n_cpu_moe=99)
        yield self._beside_peer("experts, resident", speeds["full"], model, (), 1.2)
        yield self._beside_peer("experts on the CPU", speeds["cpu"], model, EXPERTS_ON_HOST, 1.0)
        arms = ["off", "cpu", "both", "cache", "both+cache"]
        speeds = self._speeds(model, arms, n_cpu_moe=99, synthetic_routing=True)
        better = max(("off", "cpu"), key=lambda arm: speeds[arm])
        yield _figure("both", model, speeds["both"], better, speeds[better], 1.25)
        yield _figure("both+cache, a quarter cached", model, speeds["both+cache"], "cache", speeds["cache"], 1.0)

    def _speeds(
        self,
        model: Model,
        arms: Sequence[str],
        *,
        overrides: str | None = None,
        n_cpu_moe: int = 0,
        synthetic_routing: bool = False,
    ) -> dict[str, float]:
        """Tokens a second of each arm, in turn; whatever an arm does not compute on the CPU is copied."""
        cell = Workload(n_prompt=64, n_ubatch=64, n_gen=self.n_gen)
        experts = sum(tensor.n_bytes for tensor in model.tensors.values() if "_exps" in tensor.name)
        policy = PolicyOptions(op_offload_min_batch=1, cache_bytes=int(CACHED_SHARE * experts))
        with open_session(
            model, arms, [cell],
            policy=policy, overrides=overrides, n_cpu_moe=n_cpu_moe, synthetic_routing=synthetic_routing,
        ) as session:  # fmt: skip
            results = passes(session, arms, cell, self.n_pairs)
        n_decoded = self.n_gen - 1
        return {
            arm: n_decoded / statistics.median((r.decode_ns or 0) / 1e9 for r in found)
            for arm, found in results.items()
        }

    def _beside_peer(self, what: str, speed: float, model: Model, flags: Sequence[str], target: float) -> DecodeFigure:
        return _figure(what, model, speed, "llama.cpp", self.peer.decode(model, self.n_gen, flags), target)


def _figure(what: str, model: Model, speed: float, other: str, of_other: float | None, target: float) -> DecodeFigure:
    ratio = None if of_other is None else round(speed / of_other, 3)
    theirs = None if of_other is None else round(of_other, 1)
    return DecodeFigure(
        what, model.source.digest(), round(speed, 1), round(1e6 / speed, 1), other, theirs, ratio, target
    )


def measure(model: Model, peer: LlamaBench) -> Iterator[DecodeFigure]:
    """A model's figures, as they are known."""
    measured = DecodeRuns(peer)
    return measured.experts(model) if model.shape.most_experts else measured.dense(model)


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, help=__doc__)
@click.option("--only", "names", multiple=True, type=click.Choice(["dense", "experts"]), default=["dense", "experts"])
@click.option("--llama-bench", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A CUDA build.")
@click.option("--threads", type=int, help="Of PyTorch and of products on the CPU.  [default: PyTorch's]")
@click.option("--json", "json_path", type=click.Path(path_type=Path))
def main(names: tuple[str, ...], llama_bench: Path | None, threads: int | None, json_path: Path | None) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("no NVIDIA GPU")
    if threads:
        torch.set_num_threads(threads)
    rows = []
    with ExitStack() as stack:
        for name in names:
            shape = dense_shape() if name == "dense" else moe_shape()
            model = synthetic(shape, "Q4_0")
            if llama_bench is not None:  # which reads files alone
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                model = load_model(str(write_gguf(shape, "Q4_0", folder / f"{name}.gguf")))
            for figure in measure(model, LlamaBench(llama_bench)):
                rows.append(asdict(figure) | {"is_reached": figure.is_reached})
                click.echo(json.dumps(rows[-1]))
    if json_path is not None:
        json_path.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
