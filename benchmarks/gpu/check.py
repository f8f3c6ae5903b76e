"""Everything that needs a GPU, in one go: `make gpu-check`, or `python -m benchmarks.gpu.check`.

Runs the CUDA tests, then the benchmarks, and writes `gpu-check.json` and `gpu-check.md` into --output. A step
that fails is reported and the next one runs; the exit code is 1 if any failed or missed its target.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from benchmarks.gpu.llama_bench import LlamaBench
from profiler.facts import describe_machine

ROOT = Path(__file__).resolve().parents[2]
Rows = list[dict[str, Any]]


@dataclass(slots=True)
class Inputs:
    """Models that steps share; made when first asked for."""

    dense_path: Path | None
    moe_path: Path | None
    folder: Path
    llama_bench: LlamaBench
    made: dict[str, Any] = field(default_factory=dict)

    def dense(self) -> Any:
        return self._load("dense", self.dense_path)

    def moe(self) -> Any:
        return self._load("moe", self.moe_path)

    def _load(self, kind: str, path: Path | None) -> Any:
        from benchmarks.gpu import gguf_file
        from executor.models.load import load_model

        if kind not in self.made:
            if path is None:
                shape = gguf_file.dense_shape() if kind == "dense" else gguf_file.moe_shape()
                path = gguf_file.write_gguf(shape, "Q4_0", self.folder / f"{kind}.gguf")
            self.made[kind] = load_model(str(path))
        return self.made[kind]


def cuda_tests(inputs: Inputs) -> Rows:
    """Every test marked `cuda`, in parallel processes: reference logits, arms bit-identical, dequantisation exact."""
    command = [sys.executable, "-m", "tests.gpu.run_parallel", "--total", "1800", "--limit", "900"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    click.echo(done.stdout[-8000:])
    if done.returncode:
        raise RuntimeError(f"tests failed: {done.stdout[-1500:]} {done.stderr[-500:]}")
    return [{"outcome": line} for line in done.stdout.splitlines() if line.startswith("ok ")]


def dequantisation(inputs: Inputs) -> Rows:
    """Fused kernels against the memory floor; bit for bit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dequant.json"
        command = [sys.executable, "-m", "benchmarks.dequant_cuda", "--json", str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        click.echo(done.stdout)
        if done.returncode:
            raise RuntimeError(f"{done.stdout[-500:]} {done.stderr[-500:]}")
        rows: Rows = json.loads(path.read_text())["matrix"]
    return rows


def dense_limit(inputs: Inputs) -> Rows:
    """`on` over max(sum C, sum T), dense, from ubatch 512 up."""
    from benchmarks.gpu import dense_limit

    return dense_limit.run(inputs.dense())


def recorder(inputs: Inputs) -> Rows:
    """Recorder on over off, paired."""
    from benchmarks.gpu import dense_limit

    return [dense_limit.recorder_cost(inputs.dense())]


def llama_dense(inputs: Inputs) -> Rows:
    """pp8192 with the FFN in host memory, beside llama.cpp where --llama-bench is given."""
    from benchmarks.gpu import llama_shapes

    return llama_shapes.dense(inputs.dense(), inputs.llama_bench)


def llama_moe(inputs: Inputs) -> Rows:
    """pp4096 with all experts in host memory, beside llama.cpp where --llama-bench is given."""
    from benchmarks.gpu import llama_shapes

    return llama_shapes.moe(inputs.moe(), inputs.llama_bench)


def decode(inputs: Inputs) -> Rows:
    """Decoded tokens a second against their targets, beside llama.cpp where --llama-bench is given."""
    from benchmarks.gpu import decode

    models = (inputs.dense(), inputs.moe())
    return [asdict(figure) for model in models for figure in decode.measure(model, inputs.llama_bench)]


def host_decode(inputs: Inputs) -> Rows:
    """One token through layers whose weights stay on the host: packed int4 and bf16, against dequantised products."""
    command = [sys.executable, "-m", "benchmarks.host_decode"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    click.echo(done.stdout)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    return [{"line": line} for line in done.stdout.splitlines()]


def peers(inputs: Inputs) -> Rows:
    """accelerate and diffusers beside `on`, on an equal-shaped bf16 model."""
    from benchmarks.gpu import peers

    return peers.run()


def hot(inputs: Inputs) -> Rows:
    """`hot` with learned popularity on the whole Qwen3-30B-A3B preset."""
    from benchmarks.gpu import moe_arms
    from benchmarks.gpu.common import Workload
    from executor.models.load import load_model

    cells = [Workload(4 * n, n) for n in (128, 512, 1024, 2048)]
    return moe_arms.grid(load_model("qwen3-30b-a3b", quant="Q4_0"), cells, arms=("off", "on", "hot"))


def auto_qwen(inputs: Inputs) -> Rows:
    """`auto` over a ubatch x depth grid, Qwen3-30B-A3B (24 layers)."""
    return _auto_grid("qwen3-30b-a3b", "Q4_0", 24)


def auto_gpt_oss(inputs: Inputs) -> Rows:
    """`auto` over a ubatch x depth grid, gpt-oss-20b."""
    return _auto_grid("gpt-oss-20b", None, 24)


def _auto_grid(preset: str, quant: str | None, layers: int) -> Rows:
    from benchmarks.gpu import moe_arms
    from benchmarks.gpu.common import Workload
    from executor.models.load import load_model

    cells = [Workload(2 * n, n, n_depth=depth) for n in (64, 512, 2048) for depth in (0, 16384)]
    return moe_arms.grid(load_model(preset, quant=quant, layers=layers), cells, n_pairs=3, hot_warmups=2)


STEPS: dict[str, Callable[[Inputs], Rows]] = {
    "tests": cuda_tests,
    "dequantisation": dequantisation,
    "dense-limit": dense_limit,
    "recorder": recorder,
    "llama-dense": llama_dense,
    "llama-moe": llama_moe,
    "decode": decode,
    "host-decode": host_decode,
    "peers": peers,
    "hot": hot,
    "auto-qwen3-30b": auto_qwen,
    "auto-gpt-oss-20b": auto_gpt_oss,
}


@click.command()
@click.option("--only", default=",".join(STEPS), help="Comma list of steps.", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "benchmarks" / "results")
@click.option("--dense-gguf", type=click.Path(exists=True, path_type=Path), help="llama, 16 layers, Q4_0.")
@click.option("--moe-gguf", type=click.Path(exists=True, path_type=Path), help="qwen3moe, 24 layers, Q4_0.")
@click.option(
    "--llama-bench",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A CUDA build, run beside hprof.",
)
def main(only: str, output: Path, dense_gguf: Path | None, moe_gguf: Path | None, llama_bench: Path | None) -> None:
    """Run the CUDA tests and benchmarks and write their results."""
    results: dict[str, Any] = {
        "command": ["python", "-m", "benchmarks.gpu.check", *sys.argv[1:]],
        "machine": describe_machine(),
        "steps": {},
    }
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        inputs = Inputs(dense_gguf, moe_gguf, Path(folder), LlamaBench(llama_bench))
        for name in only.split(","):
            results["steps"][name] = _run(name, inputs)
            _write(results, output)
    sys.exit(any("error" in step for step in results["steps"].values()))


def _run(name: str, inputs: Inputs) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        rows = STEPS[name](inputs)
        step: dict[str, Any] = {"what": STEPS[name].__doc__, "rows": rows}
    except Exception as error:  # noqa: BLE001 - one step's failure must not lose the others' results
        traceback.print_exc()
        step = {"what": STEPS[name].__doc__, "rows": [], "error": repr(error)[:2000]}
    step["seconds"] = round(time.perf_counter() - start, 1)
    click.echo(f"== {name} ({step['seconds']} s)\n{_table(step['rows'])}\n{step.get('error', '')}")
    return step


def _write(results: dict[str, Any], output: Path) -> None:
    (output / "gpu-check.json").write_text(json.dumps(results, indent=1, default=str) + "\n")
    parts = ["# GPU check", "", f"`{' '.join(results['command'])}`", ""]
    for name, step in results["steps"].items():
        parts += [f"## {name}", "", step["what"], "", _table(step["rows"]), step.get("error", ""), ""]
    (output / "gpu-check.md").write_text("\n".join(parts))


def _table(rows: Rows) -> str:
    if not rows:
        return "(no rows)"
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(column)) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value).replace("|", "/")


if __name__ == "__main__":
    main()
