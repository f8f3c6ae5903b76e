"""Rows of llama-bench with known answers, and real files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from profiler.importers.base import Imported, ImportOptions
from profiler.importers.llama_bench import read
from tests.support import ROOT

REAL = ROOT / "tests" / "data" / "llama-bench"


def row(**changes: Any) -> dict[str, Any]:
    """A row of pp512 with three samples; `None` leaves a field out."""
    fields = {
        "build_commit": "0a1b2c3",
        "build_number": 11325,
        "cpu_info": "AMD Ryzen 7",
        "gpu_info": "NVIDIA RTX 4070",
        "backends": "CUDA",
        "model_filename": "/models/moe.gguf",
        "model_type": "qwen3moe 30B",
        "model_size": 18556686912,
        "model_n_params": 30532122624,
        "n_batch": 2048,
        "n_ubatch": 512,
        "flash_attn": 1,
        "load_mode": "none",
        "tensor_buft_overrides": "none",
        "n_prompt": 512,
        "n_gen": 0,
        "n_depth": 0,
        "test_time": "2026-10-05T09:30:00Z",
        "avg_ns": 1000,
        "stddev_ns": 3,
        "avg_ts": 512e6,
        "stddev_ts": 1.5e6,
        "samples_ns": [1003, 997, 1000],
        "samples_ts": [1.0, 2.0, 3.0],
    } | changes
    return {name: value for name, value in fields.items() if value is not None}


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(r) + "\n" for r in rows)


def as_json(rows: list[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(json.dumps(r, indent=2) for r in rows) + "\n]\n"


def as_csv(rows: list[dict[str, Any]]) -> str:
    """Without the samples, as llama-bench writes csv and sql."""
    means = list(map(_means, rows))
    lines = [list(means[0]), *([f'"{value}"' for value in fields.values()] for fields in means)]
    return "".join(",".join(line) + "\n" for line in lines)


def as_sql(rows: list[dict[str, Any]]) -> str:
    return "CREATE TABLE IF NOT EXISTS test (\n  build_commit TEXT\n);\n\n" + "".join(map(as_insert, rows))


def as_insert(fields: dict[str, Any]) -> str:
    means = _means(fields)
    values = ", ".join(f"'{value}'" for value in means.values())
    return f"INSERT INTO test ({', '.join(means)}) VALUES ({values});\n"


def _means(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if not name.startswith("samples")}


def imported(tmp_path: Path, text: str, *, arm_by: tuple[str, ...] = ()) -> Imported:
    path = tmp_path / "bench.txt"
    path.write_text(text)
    return read(path, ImportOptions(arm_by=arm_by))


def passes(result: Imported) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result.tables["passes"].to_pylist()
    return found


def arms(result: Imported) -> list[str]:
    return [arm.name for arm in result.manifest_fields["arms"]]
