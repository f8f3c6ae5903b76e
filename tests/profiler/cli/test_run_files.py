"""`hprof run -m file.gguf --device cpu`: files of several architectures, with the arms that they can have."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

import hprof
from tests.executor.architectures import test_deepseek2, test_gemma, test_granite, test_llama4, test_qwen_next


@pytest.mark.parametrize("architecture", ["gemma3", "qwen3next", "granitemoe", "deepseek2", "llama4"])
def test_all_arms_compute_the_same(architecture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, arms = tmp_path / "model.gguf", ["off", "on", "hot", "cache"]
    if architecture == "gemma3":
        test_gemma.write(path, 2)
        arms = ["off", "on"]
    elif architecture == "qwen3next":
        test_qwen_next.write(path, architecture)
    elif architecture == "deepseek2":
        test_deepseek2.write(path)
    elif architecture == "llama4":
        test_llama4.write(path, expert_used_count=2)
    else:
        test_granite.write(path, architecture)
    cell = ["--all-logits", "-p", "40", "-n", "2", "-ub", "32", "-r", "1", "--moe-cache-mib", "1"]
    call = ["run", "-m", str(path), "--device", "cpu", *cell, "--arms", ",".join(arms), "-o", str(tmp_path / "c")]
    assert hprof.main([*call, "--json"]) == 0
    [found] = orjson.loads(capsys.readouterr().out)["cells"]
    assert sorted(found["arms"]) == sorted(arms)
    assert found["bit_identical"]
    assert found["same_tokens"]
    streaming = [figures for arm, figures in found["arms"].items() if arm != "cache"]  # whose bank may hold all
    assert all(figures["bytes_h2d"]["median"] > 0 for figures in streaming)


def test_absurd_groups_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = test_deepseek2.write(tmp_path / "model.gguf", expert_group_count=5)
    assert hprof.main(["run", "-m", str(path), "--device", "cpu", "-o", str(tmp_path / "c")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"hprof: {path}: layer 1 has 2 of 5 groups of its 16 experts, which cannot be")
    assert captured.err.count("\n") == 1


def test_an_absurd_key_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = test_granite.write(tmp_path / "model.gguf", "granite", residual_scale=3e38)
    assert hprof.main(["run", "-m", str(path), "--device", "cpu", "-o", str(tmp_path / "c")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"hprof: {path}: layer 0 has additions to the residual stream times 3e+38")
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "c").exists()
