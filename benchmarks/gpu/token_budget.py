"""Where the microseconds of a decoded token go, everything resident: kernels by kind, gaps, and the host's time.

    python -m benchmarks.gpu.token_budget [--model moe] [--model dense] [--part speed] [--n-gen 64] [--json FILE]

The models are those that llama.cpp is measured with (`benchmarks.gpu.gguf_file`), made in memory. Speed and the
recorder's cost are of passes without CUPTI, the kernels of passes under it, and the memory is that of a token's graph.
Prints JSON lines as it goes.
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import torch

from benchmarks.gpu.common import Workload, open_session
from benchmarks.gpu.gguf_file import dense_shape, moe_shape, synthetic
from executor.devices.base import Event
from executor.model import ModelShape
from executor.passes import PassJob
from executor.session import Session
from profiler.arithmetic.intervals import union
from profiler.pass_kernels import cuda_trace

SHAPES: Final[dict[str, Callable[[], ModelShape]]] = {"moe": moe_shape, "dense": dense_shape}
PARTS: Final = ("speed", "kernels", "memory")
KINDS: Final = (
    ("attention", re.compile(r"flash|fmha|_attend")),
    ("copies", re.compile(r"^Mem(cpy|set)")),
    ("dequantisation", re.compile(r"unpack_stack")),
    ("products", re.compile(r"nvjet|gemm|gemv|splitK|product|direct", re.IGNORECASE)),
)
"""What a kernel's name says of it; others are small kernels."""


def speed(session: Session, cell: Workload, n_pairs: int) -> dict[str, Any]:
    """Tokens a second, recorded and not in turn, and how long the host takes to issue a token."""
    times: dict[bool, list[float]] = {True: [], False: []}
    issued = _IssueClock(session)
    for repetition in range(n_pairs + 2):
        for record in (True, False) if repetition % 2 == 0 else (False, True):
            result = session.run_pass(_job(cell, repetition), record=record)
            if repetition >= 2:
                times[record].append((result.decode_ns or 0) / cell.n_gen)
    recorded, bare = (statistics.median(times[record]) for record in (True, False))
    ratios = [a / b for a, b in zip(times[True], times[False], strict=True)]
    return {
        "tokens_per_s": round(1e9 / recorded, 1),
        "token_us": round(recorded / 1e3, 1),
        "token_us_unrecorded": round(bare / 1e3, 1),
        "recorded_over_not": round(statistics.median(ratios), 4),
        "host_issue_us": round(statistics.median(issued.spans_ns[-cell.n_gen * n_pairs :]) / 1e3, 1),
        "peak_bytes": result.vram_peak,
    }


class _IssueClock:
    """How long the host works between two waits: from knowing a token to waiting for the next."""

    def __init__(self, session: Session) -> None:
        self.spans_ns: list[int] = []
        device = session.devices[0]
        wait, last = device.synchronize, time.perf_counter_ns()

        def synchronize(event: Event) -> None:
            nonlocal last
            self.spans_ns.append(time.perf_counter_ns() - last)
            wait(event)
            last = time.perf_counter_ns()

        device.synchronize = synchronize  # type: ignore[method-assign]


def kernels(session: Session, cell: Workload) -> dict[str, Any]:
    """Microseconds of a token by kind of kernel, of the last of four passes: graphs are replayed by then."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pass.json"
        for repetition in range(4):
            with cuda_trace(path):
                session.run_pass(_job(cell, repetition))
        rows = [e for e in json.loads(path.read_text())["traceEvents"] if _is_on_device(e)]
    us: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    names: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        kind = next((kind for kind, pattern in KINDS if pattern.search(row["name"])), "small kernels")
        us[kind] += row["dur"]
        counts[kind] += 1
        names[_short(row["name"])].append(row["dur"])
    starts = np.array([round(row["ts"] * 1e3) for row in rows], dtype=np.int64)
    ends = starts + np.array([round(row["dur"] * 1e3) for row in rows], dtype=np.int64)
    span = int(ends.max() - starts.min())
    most = sorted(names.items(), key=lambda item: -sum(item[1]))[:24]
    return {
        "span_us": round(span / 1e3 / cell.n_gen, 1),
        "gaps_us": round((span - union(starts, ends).total) / 1e3 / cell.n_gen, 1),
        "us": {kind: round(total / cell.n_gen, 1) for kind, total in us.items()},
        "n": {kind: round(n / cell.n_gen, 1) for kind, n in counts.items()},
        "kernels": {
            name: [round(len(found) / cell.n_gen, 1), round(statistics.median(found), 2)] for name, found in most
        },
    }


def memory(session: Session, cell: Workload, n_graphs: int) -> dict[str, Any]:
    """What a token's graph keeps on the GPU: the token is recorded anew for each pass, and no recording let go."""
    recorded = session._recorded
    assert recorded is not None, "devices record"
    kept, in_use = [], list[int]()
    for repetition in range(n_graphs + 1):
        session.run_pass(_job(cell, repetition))
        in_use.append(_bytes_beside_torch())
        kept.append(recorded._recorded.copy())
        recorded._recorded.clear()
    return {"token_graphs": sum(map(len, kept[1:])), "token_graph_bytes": bytes_of_each(in_use)}


def bytes_of_each(in_use: Sequence[int]) -> int | None:
    """What each reading has more than the one before it; None where that is less than the driver's pieces show.

    It takes memory in pieces of some MiB, and many graphs fit into one: a single graph mostly adds nothing.
    """
    grown = in_use[-1] - in_use[0]
    return grown // (len(in_use) - 1) if grown > 0 else None


def _bytes_beside_torch() -> int:
    """Memory of the GPU that is in use and not torch's: kernels, graphs, other processes."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def _is_on_device(event: dict[str, Any]) -> bool:
    return event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")


def _short(name: str) -> str:
    return re.sub(r"void |at::native::|\(anonymous namespace\)::", "", name)[:72]


def _job(cell: Workload, repetition: int) -> PassJob:
    return PassJob(0, "full", cell.n_prompt, cell.n_gen, cell.n_ubatch, cell.n_depth, repetition)


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, help=__doc__)
@click.option("--model", "names", multiple=True, type=click.Choice(list(SHAPES)), default=list(SHAPES))
@click.option("--quant", default="Q4_0", show_default=True)
@click.option("--n-gen", default=64, show_default=True)
@click.option("--n-depth", default=64, show_default=True)
@click.option("--pairs", default=4, show_default=True, help="Pairs of passes, recorded and not.")
@click.option("--graphs", "n_graphs", default=64, show_default=True, help="Graphs of a token that are kept at once.")
@click.option("--part", "chosen", multiple=True, type=click.Choice(PARTS), default=PARTS)
@click.option("--json", "json_path", type=click.Path(path_type=Path))
def main(
    names: tuple[str, ...],
    quant: str,
    n_gen: int,
    n_depth: int,
    pairs: int,
    n_graphs: int,
    chosen: tuple[str, ...],
    json_path: Path | None,
) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("no NVIDIA GPU")
    cell = Workload(n_prompt=0, n_ubatch=1, n_gen=n_gen, n_depth=n_depth)
    rows = []
    for name in names:
        model = synthetic(SHAPES[name](), quant)
        parts: dict[str, Callable[[Session], dict[str, Any]]] = {
            "speed": partial(speed, cell=cell, n_pairs=pairs),
            "kernels": partial(kernels, cell=cell),
            "memory": partial(memory, cell=replace(cell, n_gen=4), n_graphs=n_graphs),
        }
        for part in chosen:
            with open_session(model, ["full"], [cell], synthetic_routing=False) as session:
                rows.append({"model": name, **parts[part](session)})
            click.echo(json.dumps(rows[-1]))
    if json_path is not None:
        json_path.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
