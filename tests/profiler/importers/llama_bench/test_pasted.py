"""Texts as people paste them: logs, several runs, several formats, old columns and other encodings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from executor.errors import HprofError
from profiler.importers.base import ImportOptions, detect
from profiler.importers.llama_bench import read
from tests.profiler.importers.llama_bench.samples import arms, imported, jsonl, passes, row

_HEAD = "| model | size | params | backend | ngl | test | t/s |\n| --- | --: | --: | --- | --: | --: | --: |\n"
_LOG = "ggml_cuda_init: found 1 CUDA devices:\n  Device 0: NVIDIA GeForce RTX 5070, compute capability 12.0, VMM: yes\n"


def _table(rate: float, test: str = "pp512", ngl: int = 99) -> str:
    return f"{_HEAD}| llama 7B Q4_0 | 3.56 GiB | 6.74 B | CUDA | {ngl} | {test} | {rate:.2f} \u00b1 0.10 |\n"


def _found(tmp_path: Path, text: str | bytes) -> Any:
    path = tmp_path / "pasted.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert detect(path) == "llama-bench"
    return read(path, ImportOptions())


def test_log_lines_before_a_table_name_its_device(tmp_path: Path) -> None:
    result = _found(tmp_path, _LOG + _table(100))
    assert [p["prefill_ns"] for p in passes(result)] == [5_120_000_000]
    assert result.manifest_fields["machine"]["gpu"] == "NVIDIA GeForce RTX 5070"


def test_tests_were_spelled_with_a_space_until_2024(tmp_path: Path) -> None:
    found = passes(_found(tmp_path, _table(2368.80, "pp 512") + _table(131.42, "tg 128").removeprefix(_HEAD)))
    assert [(p["n_prompt"], p["n_gen"]) for p in found] == [(512, 0), (0, 128)]


def test_csv_of_2023_has_a_digit_in_its_header(tmp_path: Path) -> None:
    text = (
        "build_commit,build_number,model_filename,model_type,f16_kv,n_gpu_layers,n_prompt,n_gen,avg_ns,avg_ts\n"
        '"3469684","1275","m.gguf","llama 7B","1","99","512","0","212155977","2413.34"\n'
    )
    assert [p["prefill_ns"] for p in passes(_found(tmp_path, text))] == [212155977]


def test_a_table_and_then_csv_are_both_read(tmp_path: Path) -> None:
    text = (
        _table(100)
        + "\n```csv\nbuild_commit,build_number,model_filename,model_type,n_ubatch,n_prompt,n_gen,avg_ns,avg_ts\n"
        + '"d05","9010","m.gguf","qwen","2048","8192","0","87789513341","93.3"\n```\n'
    )
    result = _found(tmp_path, text)
    assert [(p["n_prompt"], p["prefill_ns"]) for p in passes(result)] == [(512, 5_120_000_000), (8192, 87789513341)]
    assert arms(result) == ["llama-bench"], "what a format does not tell makes no arm"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_powershell_writes_utf_16(tmp_path: Path, encoding: str) -> None:
    assert len(passes(_found(tmp_path, _table(100).encode(encoding)))) == 1
    assert len(passes(_found(tmp_path, jsonl([row()]).encode(encoding)))) == 3


def test_a_progress_line_in_brackets_is_no_part_of_an_array(tmp_path: Path) -> None:
    first, second = (json.dumps(row(n_prompt=n)) for n in (512, 1024))
    text = f"[\n{first},\n[2/2] benchmark 2/2: {{warming up\n[ 50%] loading\n{second}\n]\n"
    result = imported(tmp_path, text)
    assert [p["n_prompt"] for p in passes(result)] == [512] * 3 + [1024] * 3
    assert not any("ends inside" in text for text in result.warnings)


def test_other_rates_beside_ts_are_no_settings_and_are_told(tmp_path: Path) -> None:
    text = (
        "| model | size | test | t/s | prompt t/s |\n| - | - | - | - | - |\n"
        "| llama | 1 GiB | pp512 | 100.00 \u00b1 1.00 | 90.00 |\n| llama | 1 GiB | tg16 | 10.00 \u00b1 1.00 | 80.00 |\n"
    )
    result = _found(tmp_path, text)
    assert arms(result) == ["llama-bench"]
    assert dict(result.dropped) == {"values of the column 'prompt t/s'": 2}


def test_a_rate_a_phase_is_read_by_what_the_test_ran(tmp_path: Path) -> None:
    text = (
        "| model | size | test | prompt t/s | gen t/s |\n| - | - | - | - | - |\n"
        "| llama | 1 GiB | pp512 | 100.00 \u00b1 1.00 | 0.00 |\n| llama | 1 GiB | pp512+tg16 | 128.00 | 8.00 |\n"
    )
    found = passes(_found(tmp_path, text))
    assert [(p["prefill_ns"], p["decode_ns"]) for p in found] == [
        (5_120_000_000, None), (4_000_000_000, 2_000_000_000),
    ]  # fmt: skip


def test_runs_under_headings_are_arms(tmp_path: Path) -> None:
    text = "".join(
        f"### {name} ###\n{_table(rate)}\n" for name, rate in (("GPU 0 ONLY", 490.97), ("GPU 1 ONLY", 152.35))
    )
    assert arms(_found(tmp_path, text)) == ["run=GPU 0 ONLY", "run=GPU 1 ONLY"]


@pytest.mark.parametrize(
    ("above", "names"),
    [
        (("GPU 0:", "GPU 1:"), ["run=GPU 0", "run=GPU 1"]),
        (("master:\n", "PR:\n"), ["run=master", "run=PR"]),
        (("`before`\n```", "`after`\n```"), ["run=before", "run=after"]),
        (("Before the patch:", "After the patch:"), ["run=Before the patch", "run=After the patch"]),
        (("<summary>A</summary>\n", "<summary>B</summary>\n"), ["run=A", "run=B"]),
        (("## H200\nslow link:", "## H200\nfast link:"), ["run=H200: slow link", "run=H200: fast link"]),
        (("X=1 ./llama-bench", "power limit 200W"), ["run=X=1 ./llama-bench", "run=power limit 200W"]),
        (("master", f"PR\n{_LOG}"), ["run=master", "run=PR"]),
    ],
)
def test_a_line_above_a_table_names_its_arm(tmp_path: Path, above: tuple[str, str], names: list[str]) -> None:
    text = "".join(f"{line}\n{_table(rate)}\nbuild: a (1)\n" for line, rate in zip(above, (1000, 1500), strict=True))
    result = _found(tmp_path, text)
    assert arms(result) == names
    assert [(p["arm"], p["prefill_ns"], p["boot"]) for p in passes(result)] == [
        (names[0], 512_000_000, 0), (names[1], 341_333_333, 0),
    ]  # fmt: skip


def test_what_a_program_printed_between_tables_names_no_arm(tmp_path: Path) -> None:
    between = f"\nbuild: a (1)\n\nreal\t0m12.3s\n```\n\nrun 2:\n{_LOG}load_backend: loaded CUDA backend\n```\n"
    result = _found(tmp_path, f"{_LOG}{_table(1000)}{between}{_table(1500)}\nbuild: a (1)\n")
    assert [(p["arm"], p["boot"]) for p in passes(result)] == [("llama-bench", 0), ("llama-bench", 1)]


@pytest.mark.parametrize("change", [("5070", "5090"), ("build: a (1)", "build: b (2)"), ("| 99 |", "| 20 |")])
def test_runs_of_other_devices_builds_or_flags_are_arms(tmp_path: Path, change: tuple[str, str]) -> None:
    block = f"{_LOG}{_table(100)}\nbuild: a (1)\n"
    assert len(arms(_found(tmp_path, block + block.replace(*change)))) == 2


def test_equal_runs_are_boots_that_were_not_interleaved(tmp_path: Path) -> None:
    result = _found(tmp_path, "".join(f"### run {n} ###\n{_LOG}{_table(100 + n)}\n" for n in range(3)))
    assert [(p["arm"], p["boot"], p["repetition"]) for p in passes(result)] == [
        ("llama-bench", 0, 0), ("llama-bench", 1, 0), ("llama-bench", 2, 0),
    ]  # fmt: skip
    [warning] = [text for text in result.warnings if "not interleaved" in text]
    assert warning.startswith("The file holds up to 3 runs of one arm")


def test_equal_runs_of_two_arms_are_paired_by_order(tmp_path: Path) -> None:
    result = _found(tmp_path, "".join(_table(100 + n, ngl=ngl) for n in range(2) for ngl in (99, 20)))
    assert [(p["arm"], p["boot"]) for p in passes(result)] == [
        ("ngl=99", 0),
        ("ngl=20", 0),
        ("ngl=99", 1),
        ("ngl=20", 1),
    ]
    assert any("paired in the order of the file" in text for text in result.warnings)


def test_a_text_without_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(_LOG)
    with pytest.raises(HprofError, match="no trace that hprof knows"):
        detect(path)


def test_tables_of_other_programs_between_are_told_and_name_no_run(tmp_path: Path) -> None:
    """A report has a heading a model, and below it a table of llama-batched-bench before llama-bench's own."""
    rows = "|    PP |  T_PP s |\n|-------|---------|\n|   512 |   0.270 |\n|  4096 |   0.907 |\n"
    other = f"- `llama-batched-bench`\n\n{rows}\n"
    parts = [
        f"## {name}\n\n{other}- `llama-bench`\n\n{_table(rate)}\n" for name, rate in (("A-20b", 100), ("B-120b", 50))
    ]
    result = _found(tmp_path, "".join(parts))
    assert arms(result) == ["run=A-20b", "run=B-120b"]
    assert result.dropped == {"rows of tables that are not llama-bench's": 2}  # those below the first output


def test_csv_rows_of_another_width_are_named_and_do_not_end_a_file_that_goes_on(tmp_path: Path) -> None:
    """As in an example that was edited by hand; the second one's rows are whole."""
    header = "build_commit,build_number,model_filename,model_type,n_prompt,n_gen,avg_ns,avg_ts\n"
    text = f"{header}a1,1,m.gguf,x,512,0,1000\n\nThe same in full:\n\n{header}a1,1,m.gguf,x,512,0,1000,512000000\n"
    result = _found(tmp_path, text)
    assert [p["prefill_ns"] for p in passes(result)] == [1000]
    assert result.dropped == {"rows of another width than their header": 1}
    assert not any("inside a row" in warning for warning in result.warnings)
    cut = _found(tmp_path, f"{header}a1,1,m.gguf,x,512,0,1000,512000000\na1,1,m.gg")
    assert any("inside a row" in warning for warning in cut.warnings)
