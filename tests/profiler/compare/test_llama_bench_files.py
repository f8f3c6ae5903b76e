"""A gate on files that llama-bench wrote: six processes of each side under one name (docs/comparing.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hprof import main

_MEAN_NS = 8 * 5_000_000
_PROCESSES = (0.996, 1.003, 0.999, 1.004, 0.998, 1.001)  # what sets one process apart from another


def imported(folder: Path, name: str, slower: float, *, one_name: bool = True) -> str:
    """A capture of six files, decode `slower` times as long as the first build's; their names the arms if not one."""
    arms = []
    for number, process in enumerate(_PROCESSES):
        file = folder / f"{name}{number}.jsonl"
        samples = [int(_MEAN_NS * slower * process) + 1000 * repetition for repetition in range(2)]
        row = {"build_commit": "0a1b2c3", "model_filename": "m.gguf", "model_type": "fake 1B", "n_ubatch": 512}
        row |= {"n_prompt": 0, "n_gen": 8, "n_depth": 0, "samples_ns": samples, "avg_ns": sum(samples) // 2}
        file.write_text(json.dumps(row) + "\n")
        arms += ["--arm", f"engine={file}"] if one_name else [str(file)]
    assert main(["import", *arms, "-o", str(folder / name)]) == 0
    return str(folder / name)


@pytest.mark.parametrize(("slower", "code", "state"), [(1.1, 1, "FAILED"), (1.0, 0, "passed")])
def test_a_slower_decode_fails_and_an_a_a_passes(
    slower: float, code: int, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = imported(tmp_path, "before", 1), imported(tmp_path, "after", slower)
    assert main(["compare", before, after, "--fail-on", "decode<-5%"]) == code
    assert f"{state}: fail on decode<-5%" in " ".join(capsys.readouterr().out.split())


def test_files_without_a_name_are_an_arm_each_and_undecided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = imported(tmp_path, "before", 1, one_name=False)
    assert main(["compare", f"{before}#before0", f"{before}#before1", "--fail-on", "decode<-5%"]) == 1
    assert "INCONCLUSIVE" in capsys.readouterr().out
