"""`mistral3`: YaRN as the file says it, queries that grow with their position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.executor.architectures.blocks import EXPERT_KEYS, KEYS, write_plain
from tests.random_gguf import check_against_llama_cpp, check_in_engine, check_refused

YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 16.0,
    "rope.scaling.original_context_length": 8,
    "rope.scaling.yarn_beta_fast": 8.0,
    "rope.scaling.yarn_beta_slow": 0.5,
}
GROWING = {"attention.temperature_scale": 0.5}
CASES: dict[str, dict[str, Any]] = {
    "as Ministral 3": {**YARN, **GROWING, "rope.scaling.yarn_log_multiplier": 1.0},
    "another multiplier": {**YARN, "rope.scaling.yarn_log_multiplier": 0.4, "rope.scaling.attn_factor": 1.2},
    "yarn without a multiplier": YARN,
    "growing with the context's length": {**GROWING, "context_length": 16},
    "experts": {**YARN, **GROWING, **EXPERT_KEYS, "expert_feed_forward_length": 48, "feed_forward_length": 48},
}


def write(path: Path, **changed: Any) -> Path:
    """The file with some keys changed."""
    return write_plain(path, "mistral3", KEYS | changed)


@pytest.mark.parametrize("case", CASES)
def test_as_llama_cpp_computes_it(case: str, tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", **CASES[case]))


def test_every_arm_agrees(tmp_path: Path) -> None:
    check_in_engine(write(tmp_path / "model.gguf", **CASES["experts"]), ["off", "on", "hot", "full", "cpu"])


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "turns the wrong way round": ({**YARN, "rope.scaling.yarn_beta_slow": 9.0}, "yarn scaling between 9 and 8 turns"),
    "turns without end": ({**YARN, "rope.scaling.yarn_beta_fast": 3e38}, "yarn scaling between"),
    "a multiplier below 0": ({**YARN, "rope.scaling.yarn_log_multiplier": -1.0}, "yarn_log_multiplier is -1.0"),
    "endless growth": ({"attention.temperature_scale": float("inf")}, "temperature_scale is inf"),
    "growth of absurd size": ({"attention.temperature_scale": 1e30}, "queries that grow by 1e.30"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_absurd_values_get_one_sentence(case: str, tmp_path: Path) -> None:
    changed, words = HOSTILE[case]
    check_refused(write(tmp_path / "model.gguf", **changed), words)
