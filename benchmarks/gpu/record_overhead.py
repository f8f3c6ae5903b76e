"""What `hprof record` costs a llama-bench, and whether it counts its copies right; needs a GPU and a CUDA build of it.

    python -m benchmarks.gpu.record_overhead --bin llama-bench -m dense.gguf -ot "ffn_(gate|up|down).*=CPU"
    python -m benchmarks.gpu.record_overhead --bin llama-bench --decode moe.gguf        # all resident: graphs replayed

Runs without and with the recorder in mirrored order (ABBA), a fresh process each. A ratio is of the pair's t/s, with
and without. Bytes: what copies of a repetition moved to the device, against what llama.cpp's scheduler copies: the host
tensors that -ot names, once a ubatch, but for the last layer's, whose FFN is computed for the last token alone.
Targets: at most 2 % in prefill, 5 % in decode (auto); bytes to 0.1 %. `record_candidates` looks for what costs.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import gguf

import hprof
from profiler.capture import Capture

_PREFILL_TARGET: Final = 0.98
_DECODE_TARGET: Final = 0.95
_BYTES_TOLERANCE: Final = 1e-3
_GRAPHS: Final = ("auto", "node")


@dataclass(frozen=True, slots=True)
class Bench:
    """One command of llama-bench, without a warm-up, so that all of its copies are of repetitions."""

    name: str
    command: list[str]
    repetitions: int

    def run(self, folder: Path, graphs: str | None) -> tuple[float, Path | None]:
        """(t/s, the capture); graphs: what follows --graphs, None without the recorder."""
        capture = folder / f"{self.name}-{len(list(folder.iterdir()))}"
        options = f"--graphs {graphs}".split()
        recorder = [sys.executable, "-m", "hprof", "record", "-o", str(capture), *options, "--"]
        command = (recorder if graphs else []) + self.command
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
        if done.returncode:
            raise click.ClickException(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
        (row,) = json.loads(done.stdout)
        samples = row["samples_ts"][1:] or row["samples_ts"]  # the first repetition warms up
        return statistics.median(samples), capture if graphs else None


def abba(bench: Bench, folder: Path, graphs: str, pairs: int) -> dict[str, Any]:
    """The ratios of pairs, and the last capture."""
    without: list[float] = []
    recorded: list[float] = []
    capture: Path | None = None
    for number in range(pairs):
        for is_recorded in (number % 2 == 1, number % 2 == 0):
            speed, path = bench.run(folder, graphs if is_recorded else None)
            (recorded if is_recorded else without).append(speed)
            capture = path or capture
    ratios = [b / a for a, b in zip(without, recorded, strict=True)]
    assert capture is not None
    manifest = Capture.open(str(capture)).manifest
    return {
        "bench": bench.name,
        "graphs": graphs,
        "without_tokens_per_s": without,
        "recorded_tokens_per_s": recorded,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "capture": str(capture),
        "rows": manifest.rows.get("events"),
        "warnings": manifest.warnings,
    }


def copied(capture: str, repetitions: int, weight_sizes: Collection[int]) -> dict[str, Any]:
    """What was copied to the device, a repetition, and how it lay beside kernels; weights are known by size."""
    rows = Capture.open(capture).table("events", ["kind", "bytes"]).to_pylist()
    sizes = Counter(row["bytes"] for row in rows if row["kind"] == "h2d" and row["bytes"])
    weights = {size: count for size, count in sizes.items() if size in weight_sizes}
    (device,) = hprof.open(capture).report().to_json()["devices"]
    return {
        "bytes": sum(size * count for size, count in sizes.items()) / repetitions,
        "weight_bytes": sum(size * count for size, count in weights.items()) / repetitions,
        "copies_by_size": dict(sizes.most_common(12)),
        "device": device,
    }


def expected_copies(model: Path, override: str) -> list[int]:
    """Sizes of what the scheduler copies for a ubatch, in bytes: the named tensors of all layers but the last."""
    pattern = re.compile(override.partition("=")[0])
    tensors = [(tensor.name, int(tensor.n_bytes)) for tensor in gguf.GGUFReader(model).tensors]
    layers = {name: int(found[1]) for name, _ in tensors if (found := re.match(r"blk\.(\d+)\.", name))}
    last = max(layers.values())
    return [size for name, size in tensors if pattern.search(name) and layers.get(name, last) < last]


@click.command()
@click.option("--bin", "binary", required=True, type=click.Path(exists=True), help="llama-bench, a CUDA build.")
@click.option("-m", "model", type=click.Path(exists=True, path_type=Path), help="The model of the prefill.")
@click.option("-ot", "override", default="ffn_(gate|up|down).*=CPU", show_default=True)
@click.option("--decode", type=click.Path(exists=True, path_type=Path), help="The model of the decode, all resident.")
@click.option("-p", "n_prompt", default=2048, show_default=True)
@click.option("-ub", "n_ubatch", default=512, show_default=True)
@click.option("-n", "n_gen", default=128, show_default=True)
@click.option("-r", "repetitions", default=4, show_default=True, help="Of a process, the first warms up.")
@click.option("--pairs", default=4, show_default=True)
@click.option("-o", "output", type=click.Path(path_type=Path), help="Write the rows as JSON too.")
def main(
    binary: str,
    model: Path | None,
    override: str,
    decode: Path | None,
    n_prompt: int,
    n_ubatch: int,
    n_gen: int,
    repetitions: int,
    pairs: int,
    output: Path | None,
) -> None:
    """Measure, print, and fail where a target is missed."""
    common = [binary, "-o", "json", "--no-warmup", "-fa", "1", "-ngl", "99", "-r", str(repetitions)]
    found: list[dict[str, Any]] = []
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if model is not None:
            flags = ["-m", str(model), "-p", str(n_prompt), "-n", "0", "-ub", str(n_ubatch), "-ot", override]
            bench = Bench("prefill", [*common, "-lm", "none", *flags], repetitions)
            row = abba(bench, folder, "auto", pairs)
            expected_sizes = expected_copies(model, override)
            row |= copied(row["capture"], repetitions, set(expected_sizes))
            row["expected_bytes"] = expected = sum(expected_sizes) * -(-n_prompt // n_ubatch)
            if row["ratio"] < _PREFILL_TARGET:
                missed.append(f"prefill at x{row['ratio']:.3f}")
            if abs(row["weight_bytes"] / expected - 1) > _BYTES_TOLERANCE:
                missed.append(f"{row['weight_bytes']:,.0f} bytes a repetition for {expected:,}")
            found.append(row)
        if decode is not None:
            bench = Bench("decode", [*common, "-m", str(decode), "-p", "0", "-n", str(n_gen)], repetitions)
            for graphs in _GRAPHS:
                row = abba(bench, folder, graphs, pairs)
                if graphs == "auto" and row["ratio"] < _DECODE_TARGET:
                    missed.append(f"decode at x{row['ratio']:.3f}")
                found.append(row)
        for row in found:
            click.echo(json.dumps(row, indent=1, default=str))
    if output is not None:
        output.write_text(json.dumps(found, indent=1, default=str), encoding="utf-8")
    if missed:
        raise click.ClickException(f"missed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
