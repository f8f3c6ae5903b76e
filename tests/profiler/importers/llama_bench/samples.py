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


def imported(tmp_path: Path, text: str, *, arm_by: tuple[str, ...] = ()) -> Imported:
    path = tmp_path / "bench.txt"
    path.write_text(text)
    return read(path, ImportOptions(arm_by=arm_by))


def passes(result: Imported) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result.tables["passes"].to_pylist()
    return found


def arms(result: Imported) -> list[str]:
    return [arm.name for arm in result.manifest_fields["arms"]]
