"""The discussion's tables: every command is one that `hprof run` takes, and captures become tables and plots."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from benchmarks.thread.draw import batch_crossover, draw_table
from benchmarks.thread.host_layers import decode_by_host_layers, slope_of
from benchmarks.thread.load_modes import MODES, MODES_FILE, load_table
from benchmarks.thread.rows import cell_rows, report_of
from benchmarks.thread.tables import TABLES, Run
from hprof.command_line import cli
from profiler.capture import Capture
from profiler.cli import run as run_cli
from profiler.cli.run import command

RUNS = [run for table in TABLES.values() for run in table.runs]
PAGE = "".join(f"<!-- {letter} -->\n<!-- /{letter} -->\n" for letter in TABLES)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_command_is_understood(run: Run) -> None:
    argv = run.argv("somewhere")
    assert argv[:2] == ["hprof", "run"]
    context = command.make_context("run", argv[2:])
    assert context.params["model"] in run.flags


MOE = "-m tiny-moe --layers 2 -ncmoe 99 --device sim -r 2"
STREAMED = f"{MOE} --op-offload-min-batch 0 -ub 32"
SMALL = {
    "a-dense": "-m tiny-dense --layers 2 --device sim -r 2 -p 64 -n 0 -ub 32,64 --arms off,on,full",
    "b-experts": f"{MOE} -p 64 -n 0 -ub 32,64 -d 0,32 --arms off,on,full",
    "c-short": f"{MOE} -p 34 -n 0 -ub 64 --arms off,off-whole,on,gated",
    "c-long": f"{MOE} -p 256 -n 0 -ub 64 --arms off,on,gated",
    "c-deep": f"{MOE} -p 64 -n 0 -ub 64 -d 128 --arms off,on",
    "c-sweep": f"{MOE} -p 64-1024*4 -n 0 -ub 1024 --arms off,on",
    "c-budget": f"{MOE} -p 34 -n 4 -ub 64 --arms off,on,gated",
    "c-host": f"{MOE} -ncmoe 1,2,3 -p 34 -n 4 -ub 64 --arms off".replace("--layers 2 -ncmoe 99 ", ""),
    "d-cache": f"{STREAMED} -p 32 -n 4 --arms off,cache --moe-cache-mib 4",
    "d-pageable": f"{STREAMED} -p 32 -n 4 --arms off -lm mmap",
    "d-batch1": f"{STREAMED} -p 1 -n 4 --arms off,hot,on",
    **{f"f-experts-{n}": f"{MOE} -p 64 -n 2 -ub 32 --arms off,on --n-devices {n}" for n in (1, 2)},
    **{f"f-dense-{n}": f"--layers 2 --device cpu -p 64 -n 2 -ub 32 -r 1 --arms off,on --n-devices {n}" for n in (1, 2)},
}


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands would make, of tiny models."""
    folder = tmp_path_factory.mktemp("captures")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run_cli, "show_report", lambda *_, **__: None)  # a quarter of the time
        for name, flags in SMALL.items():
            argv = ["run", *shlex.split(flags), "-o", str(folder / name)]
            done = CliRunner().invoke(cli, argv, catch_exceptions=False)
            assert done.exit_code == 0, done.output
    rows = [
        {"mode": mode.label, "load_s": 1.0, "first_copy_ms": 2.0, "first_gb_s": 3.0}
        | {"warm_copy_ms": 4.0, "warm_gb_s": 5.0, "warm_ttft_ms": 6.0}
        for mode in MODES
    ]
    for number in range(len(MODES)):
        shutil.copytree(folder / "c-short", folder / f"e-{number:02d}")
    (folder / MODES_FILE).write_text(json.dumps(rows))
    return folder


@pytest.mark.parametrize("letter", TABLES)
def test_tables_and_plots_are_drawn(letter: str, captures: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "thread-tables.md").write_text(PAGE)
    block = draw_table(letter, captures, tmp_path)
    page = (tmp_path / "thread-tables.md").read_text()
    assert block in page
    assert page.count("<!-- a -->") == 1
    named = [line.split("](")[1].rstrip(")") for line in block.splitlines() if line.startswith("![")]
    assert all((tmp_path / name).stat().st_size > 1000 for name in named)
    assert bool(named) == (letter != "f")


def test_a_layer_on_the_host_costs_a_line_s_slope() -> None:
    passes = pd.DataFrame({"n_layers": [4, 4, 8, 8, 16, 16], "ms": [14.0, 14, 22, 22, 38, 90]})  # the last one slow
    found = slope_of(passes)
    assert found.ms_a_layer == pytest.approx(2)
    assert found.low <= 2 <= found.high
    assert found.ms_without == pytest.approx(6)


def test_host_layers_are_counted_by_arm(captures: Path) -> None:
    passes = decode_by_host_layers(Capture.open(str(captures / "c-host")))
    assert passes.groupby("n_layers").size().to_dict() == {1: 2, 2: 2, 3: 2}
    means = passes.groupby("n_layers")["ms"].mean()
    assert means.is_monotonic_increasing


def test_two_devices_gave_the_same_tokens(captures: Path, tmp_path: Path) -> None:
    (tmp_path / "thread-tables.md").write_text(PAGE)
    block = draw_table("f", captures, tmp_path)
    assert "Of 2 passes, 2 gave the same tokens on two GPUs as on one, 2 the same logits." in block


def test_rows_say_what_the_report_says(captures: Path) -> None:
    report = report_of(str(captures / "b-experts"))
    rows = cell_rows(report)
    assert len(rows) == 2 * 2 * 3
    on = next(row for row in rows if row["arm"] == "on" and row["n_depth"] == 32 and row["n_ubatch"] == 64)
    cell = next(cell for cell in report.cells if cell.n_depth == 32 and cell.n_ubatch == 64)
    found = cell.against_baseline["on"]["prefill_tokens_per_s"]
    assert found is not None
    assert (on["prefill_ratio"], on["prefill_verdict"]) == (found.ratio, found.verdict)


def test_the_crossover_is_over_the_batch() -> None:
    def row(batch: int, ratio: float) -> dict[str, object]:
        bounds = {"ttft_ms_ratio": ratio, "ttft_ms_ratio_low": ratio - 0.01, "ttft_ms_ratio_high": ratio + 0.01}
        return {"arm": "on", "n_prompt": batch, "ttft_ms_word": None, **bounds}

    same_work = row(16, 0.99) | {"ttft_ms_word": "same work"}  # below the threshold both compute on the host
    found = batch_crossover([same_work, row(64, 1.2), row(512, 1.1), row(1024, 1 / 1.1)])
    assert found is not None
    assert found.n_ubatch is not None
    assert found.n_ubatch == pytest.approx(512 * 2**0.5)  # half way between 512 and 1024 on a logarithmic axis
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.n_ubatch < found.high


def test_a_page_without_marks_is_refused(captures: Path, tmp_path: Path) -> None:
    (tmp_path / "thread-tables.md").write_text("no marks")
    with pytest.raises(ValueError, match="<!-- e -->"):
        draw_table("e", captures, tmp_path)


def test_load_table_has_a_row_a_mode() -> None:
    row = {"load_s": 1, "first_copy_ms": 1, "first_gb_s": 1, "warm_copy_ms": 1, "warm_gb_s": 1, "warm_ttft_ms": 1}
    assert len(load_table([{"mode": mode.label, **row} for mode in MODES]).splitlines()) == 2 + len(MODES)


def test_the_help_keeps_its_commands_on_lines_of_their_own() -> None:
    from benchmarks.thread.__main__ import main

    lines = CliRunner().invoke(main, ["--help"]).output.splitlines()
    assert sum(line.strip().startswith("python -m benchmarks.thread ") for line in lines) == 3


def test_of_a_log_the_last_paragraph_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.thread.__main__ import _last_paragraph, _run

    report = "a table " * 60 + " \n \nIn one pass, \n" + "a long sentence " * 40 + "\n\n"
    assert _last_paragraph(report) == "In one pass,\n" + ("a long sentence " * 40).rstrip()
    assert _last_paragraph("\n".join(map(str, range(100)))).splitlines() == [str(number) for number in range(80, 100)]
    assert not _run(["hprof", "report", "nowhere/at/all"], tmp_path / "a.log")
    assert capsys.readouterr().out.splitlines()[-1].startswith("  hprof: ")


def test_commands_are_printed() -> None:
    from benchmarks.thread.__main__ import main

    printed = CliRunner().invoke(main, ["commands"], catch_exceptions=False).output
    assert printed.count("hprof run") == len(RUNS) + len(MODES)


def test_a_table_says_where_it_was_measured(captures: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "thread-tables.md").write_text(PAGE)
    assert re.search(r"Measured on: .*device sim\.\n", draw_table("c", captures, tmp_path))


def test_what_was_not_measured_is_told_in_a_sentence(tmp_path: Path) -> None:
    from benchmarks.thread.__main__ import main

    (tmp_path / "c-short").mkdir()
    done = CliRunner().invoke(main, ["draw", "c", "--captures", str(tmp_path), "--docs", str(tmp_path)])
    assert done.exit_code == 1
    assert "has no c-long, c-deep, c-sweep, c-budget, c-host, which table (c) is made of" in done.output
