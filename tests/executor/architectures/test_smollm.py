"""`smollm3`: every fourth layer has no positions."""

from __future__ import annotations

from pathlib import Path

from tests.executor.architectures.blocks import ATTENTION, DENSE, HIDDEN, KEYS, NORMS
from tests.random_gguf import check_against_llama_cpp, check_in_engine, model_tensors, write_random_gguf


def write(path: Path) -> Path:
    tensors = model_tensors(HIDDEN, [{**NORMS, **ATTENTION, **DENSE}] * 5)
    return write_random_gguf(path, "smollm3", {**KEYS, "block_count": 5}, tensors)


def test_as_llama_cpp_computes_it(tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf"))


def test_every_arm_agrees(tmp_path: Path) -> None:
    check_in_engine(write(tmp_path / "model.gguf"), ["off", "on", "full", "cpu"])
