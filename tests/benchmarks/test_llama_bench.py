"""The llama-bench that the GPU benchmarks run beside hprof: figures are those of the file at hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.gpu.llama_bench import EXPERTS_ON_HOST, LlamaBench, ratio
from executor.models.load import load_model

FAKE = """
import json, sys
sys.argv.count("-m") == 1 or sys.exit("no model")
open(sys.argv[0] + ".calls", "a").write("x")
value = lambda flag: sys.argv[sys.argv.index(flag) + 1]
"-ngl" in sys.argv and value("-ngl") == "99" or sys.exit(3)
for ubatch in value("-ub").split(",") if "-ub" in sys.argv else ["512"]:
    row = {"n_ubatch": int(ubatch), "n_gen": int(value("-n")), "avg_ts": int(ubatch) + ("-ncmoe" in sys.argv)}
    print("warning: not a row") or print(json.dumps(row))
"""


def program(folder: Path, text: str) -> Path:
    path = folder / "llama-bench"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


def test_figures_are_measured_once_a_file_and_setting(tmp_path: Path) -> None:
    peer = LlamaBench(program(tmp_path, FAKE))
    model = load_model("tiny-moe", layers=1)
    assert peer.prefill(model, 4096, (512, 2048), ()) == {512: 512, 2048: 2048}
    assert peer.prefill(model, 4096, (512, 2048), EXPERTS_ON_HOST) == {512: 513, 2048: 2049}
    assert peer.decode(model, 64, ()) == 512
    assert peer.prefill(model, 4096, (512, 2048), ()) == {512: 512, 2048: 2048}
    assert len((tmp_path / "llama-bench.calls").read_text()) == 3
    assert {key[0] for key in peer.known} == {model.source.digest()}


def test_without_a_program_nothing_is_told() -> None:
    model = load_model("tiny-dense", layers=1)
    assert LlamaBench().prefill(model, 512, (512,), ()) == {}
    assert LlamaBench().decode(model, 64, ()) is None
    assert (ratio(200.0, None), ratio(200.0, 100.0)) == (None, 2.0)


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    peer = LlamaBench(program(tmp_path, "import sys; sys.exit('no CUDA here')"))
    with pytest.raises(RuntimeError, match=r"llama-bench exited with 1: no CUDA here"):
        peer.decode(load_model("tiny-dense", layers=1), 64, ())
