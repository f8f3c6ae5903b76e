"""Products straight from stored bytes against dequantising first: microseconds, and TB/s of weights, on a GPU.

    python -m benchmarks.gpu.direct_products [--quant Q4_0] [--rows 1,4,16] [--sweep] [--json FILE]

The matrices are those of the models that llama.cpp is measured with (`benchmarks.gpu.gguf_file`), resident as hprof
lays them and streamed as the file has them. Each figure is of one CUDA graph of launches over weights that together do
not fit in the L2 cache. `--sweep` tries the kernels' tiles. Prints rows as it goes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import torch
import torch.nn.functional as F

from executor.quants import direct, fill_random, row_bytes
from executor.quants.direct import Tile
from executor.quants.direct_rows import split, split_gated
from executor.quants.dispatch import dequantise, dequantise_chosen
from executor.quants.relaid import relay, resident_layout
from executor.quants.stored import Stored

SHAPES: Final = (
    ((17408, 17408), 5120),
    ((5120,), 17408),
    ((5120, 1024, 1024), 5120),
    ((5120,), 5120),
    ((4096, 512, 512), 2048),
    ((2048,), 4096),
    ((32000,), 2048),
)
N_EXPERTS, N_USED, N_FF, HIDDEN = 128, 8, 768, 2048
_NOT_IN_CACHE: Final = 250_000_000  # bytes: five times the L2 cache of an H200
TILES: Final = [
    Tile(rows, units, warps)
    for rows, units, warps in itertools.product((1, 2, 4), (32, 64, 128), (1, 2, 4))
    if 32 * warps <= units <= 64 * warps and rows * units <= 128 * warps
]


def stored(quant: str, *shape: int, resident: bool) -> Stored:
    """Random weights on the GPU, in the layout of residents or the file's."""
    raw = torch.empty((*shape[:-1], row_bytes(quant, shape[-1])), dtype=torch.uint8)
    fill_random(raw.view(-1), quant, 0.02, 0)
    raw = raw.cuda()
    layout = resident_layout(quant, shape[-1]) if resident else quant
    relay(raw.view(-1), layout)
    return Stored(raw, layout)


def copies(one: Stored, n: int) -> list[Stored]:
    """As many of them as do not fit in the cache."""
    return [one, *(Stored(one.raw.clone(), one.layout) for _ in range(n - 1))]


def microseconds(calls: Sequence[Callable[[], object]]) -> float:
    """The best of five replays of one graph of all calls, per call."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) * 1e3 / len(calls))
    return min(times[1:])


def widened(x: torch.Tensor, matrices: Sequence[Stored]) -> None:
    """The products that were taken before."""
    for raw, layout in matrices:
        F.linear(x, dequantise(raw, layout, x.dtype))


def widened_experts(dtype: torch.dtype, stacks: Sequence[Stored], ids: torch.Tensor) -> None:
    """The chosen experts dequantised, which came before their products."""
    for raw, layout in stacks:
        dequantise_chosen(raw, layout, dtype, ids)


def dense_rows(quant: str, outs: tuple[int, ...], n_in: int, n_rows: int, sweep: bool) -> Iterable[dict[str, Any]]:
    """Figures of one launch over matrices (out, in) for rows (n_rows, in)."""
    x = torch.randn(n_rows, n_in, device="cuda", dtype=torch.bfloat16)
    rows, n_bytes = split(x), sum(outs) * row_bytes(quant, n_in)
    n = max(2, _NOT_IN_CACHE // n_bytes)
    for resident in (True, False):
        sets = list(zip(*(copies(stored(quant, out, n_in, resident=resident), n) for out in outs), strict=True))

        def us(tile: Tile | None, sets: Sequence[Sequence[Stored]] = sets) -> float:
            return microseconds([partial(direct.dense, one, rows, x.dtype, tile) for one in sets])

        yield {
            "product": _name(outs, n_in),
            "rows": n_rows,
            "layout": sets[0][0].layout,
            **_speed(us, n_bytes, sweep=sweep),
            "widened_us": microseconds([partial(widened, x, one) for one in sets]),
        }


def _name(outs: tuple[int, ...], n_in: int) -> str:
    return f"{'+'.join(map(str, outs))} x {n_in}"


def expert_rows(quant: str, n_tokens: int, sweep: bool) -> Iterable[dict[str, Any]]:
    """The same for a layer's chosen experts: gate and up, and the weighted down."""
    n_layers = 6
    ids = [
        torch.stack([torch.randperm(N_EXPERTS, device="cuda")[:N_USED] for _ in range(n_tokens)])
        for _ in range(2 * n_layers)
    ]
    weights = torch.rand(n_tokens, N_USED, device="cuda")
    x = torch.randn(n_tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
    gates, downs = (
        copies(stored(quant, N_EXPERTS, *shape, resident=True), n_layers) for shape in ((N_FF, HIDDEN), (HIDDEN, N_FF))
    )
    ups = gates[1:] + gates[:1]
    rows, one = split(x), n_tokens * N_USED * N_FF * row_bytes(quant, HIDDEN)
    gate, up = torch.randn(n_tokens * N_USED, 2, N_FF, device="cuda").unbind(1)
    inner = split_gated(gate, up, "silu")
    layers = [(gates[i % n_layers], ups[i % n_layers], downs[i % n_layers], ids[i]) for i in range(len(ids))]

    def gate_and_up(tile: Tile | None) -> float:
        return microseconds([partial(direct.gate_and_up, g, u, chosen, None, rows, tile) for g, u, _, chosen in layers])

    def down(tile: Tile | None) -> float:
        rest = (None, weights, inner, x.dtype, tile)
        return microseconds([partial(direct.weighted_down, d, chosen, *rest) for *_, d, chosen in layers])

    what = {"rows": n_tokens, "layout": gates[0].layout}
    two = [partial(widened_experts, x.dtype, (g, u), chosen[0]) for g, u, _, chosen in layers]
    yield {
        "product": "experts' gate and up",
        **what,
        **_speed(gate_and_up, 2 * one, sweep=sweep),
        "dequantise_one_token_us": microseconds(two),
    }
    three = [partial(widened_experts, x.dtype, (d,), chosen[0]) for *_, d, chosen in layers]
    yield {
        "product": "experts' down, summed",
        **what,
        **_speed(down, one, sweep=sweep),
        "dequantise_one_token_us": microseconds(three),
    }
    yield {"product": "rows split", "rows": n_tokens, "us": microseconds([partial(split, x)] * 40)}
    joined = microseconds([partial(split_gated, gate, up, "silu")] * 40)
    yield {"product": "activation, split", "rows": n_tokens, "us": joined}


def _speed(us: Callable[[Tile | None], float], n_bytes: int, *, sweep: bool) -> dict[str, Any]:
    """The kernels' own tile, and with `sweep` the five best."""
    own = us(None)
    figures: dict[str, Any] = {"us": own, "tb_s": n_bytes / own / 1e6}
    if sweep:
        found = sorted((us(tile), tile) for tile in TILES)[:5]
        figures["best"] = [f"{time:.1f} us {n_bytes / time / 1e6:.2f} TB/s {tuple(tile)}" for time, tile in found]
    return figures


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, help=__doc__)
@click.option("--quant", "quants", multiple=True, default=["Q4_0"], show_default=True)
@click.option("--rows", "row_list", default="1,4,16", show_default=True)
@click.option("--only", default="", help="Products whose name contains this.")
@click.option("--sweep", is_flag=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path))
def main(quants: tuple[str, ...], row_list: str, only: str, sweep: bool, json_path: Path | None) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("no NVIDIA GPU")
    figures = []
    for quant, n_rows in itertools.product(quants, map(int, row_list.split(","))):
        parts = [dense_rows(quant, outs, n_in, n_rows, sweep) for outs, n_in in SHAPES if only in _name(outs, n_in)]
        parts += [expert_rows(quant, n_rows, sweep)] if only in "experts" else []
        for found in itertools.chain(*parts):
            figures.append({"quant": quant, **found})
            rounded = {
                key: round(value, 2) if isinstance(value, float) else value for key, value in figures[-1].items()
            }
            click.echo(json.dumps(rounded))
    if json_path is not None:
        json_path.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
