"""`python -m benchmarks.gpu.advice`: what it takes from the commands and rows that it holds against each other."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.gpu.advice import Tried, bench, main, rates, typed

FAKE = """#!{python}
import json, os, sys
print("log")
print(json.dumps({{"n_prompt": 512, "n_gen": 0, "avg_ts": 100.0, "least": os.environ["GGML_OP_OFFLOAD_MIN_BATCH"]}}))
print(json.dumps({{"n_prompt": 0, "n_gen": 64, "avg_ts": 10.0, "flags": sys.argv[1:]}}))
"""


def test_a_printed_command_is_run_on_other_prompts() -> None:
    line = 'GGML_OP_OFFLOAD_MIN_BATCH=192 llama-bench -m "a b.gguf" -ngl 99 -p 4096 -n 64 -ot "blk.(0|1).ffn=CPU"'
    environment, flags = typed(line)
    assert environment == {"GGML_OP_OFFLOAD_MIN_BATCH": "192"}
    assert flags == ["-ngl", "99", "-ot", "blk.(0|1).ffn=CPU"]


@pytest.mark.skipif(sys.platform == "win32", reason="a script is run by its first line")
def test_rates_are_told_by_test(tmp_path: Path) -> None:
    program = tmp_path / "llama-bench"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(0o755)
    rows = bench(program, tmp_path / "m.gguf", ["-ngl", "99"], {"GGML_OP_OFFLOAD_MIN_BATCH": "7"})
    assert rates(rows) == {"pp512": 100.0, "tg64": 10.0}
    assert rows[0]["least"] == "7"
    assert rows[1]["flags"] == ["-m", str(tmp_path / "m.gguf"), "-ngl", "99"]


def test_an_objective_is_its_own_time() -> None:
    one = Tried("on -ub 64", 3.0, 2.0, 1.0)
    assert [one.cost(objective) for objective in ("ttft", "prefill", "decode")] == [3.0, 2.0, 1.0]


def test_after_its_time_nothing_begins_and_what_is_left_is_named(tmp_path: Path) -> None:
    program, model = tmp_path / "llama-bench", tmp_path / "m.gguf"
    program.touch()
    model.touch()
    words = ["llama-cpp", "--llama-bench", str(program), "--seconds", "0", "--budgets", "1GiB,2GiB", str(model)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0
    assert json.loads(done.output) == {"left": [f"{model} 1GiB", f"{model} 2GiB"]}
