"""The five formats, of any age, whole or cut off, give the same rows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.errors import HprofError
from profiler.importers.base import ImportOptions, detect
from profiler.importers.llama_bench import read
from profiler.importers.llama_bench.md import parse_md
from tests.profiler.importers.llama_bench.samples import REAL, arms, imported, jsonl, passes, row

_TESTS = [(32, 32, 0), (32, 64, 0), (32, 0, 8), (64, 32, 0), (64, 64, 0), (64, 0, 8)]  # n_ubatch, n_prompt, n_gen


@pytest.mark.parametrize(("name", "per_row"), [("json", 2), ("jsonl", 2), ("csv", 1), ("sql", 1), ("md", 1)])
def test_real_files_of_one_run_give_the_same_tests(name: str, per_row: int) -> None:
    path = REAL / f"smollm2.{name}"
    assert detect(path) == "llama-bench"
    result = read(path, ImportOptions())
    found = passes(result)
    assert [(p["n_ubatch"], p["n_prompt"], p["n_gen"]) for p in found] == [t for t in _TESTS for _ in range(per_row)]
    assert all((p["prefill_ns"] is None) == (p["n_gen"] > 0) == (p["decode_ns"] is not None) for p in found)
    assert all(p["ttft_ns"] is None for p in found)
    assert not result.dropped
    assert result.manifest_fields["model"]["name"] == "llama 256M Q4_1"


def test_samples_become_repetitions_with_their_own_times() -> None:
    found = passes(read(REAL / "smollm2.jsonl", ImportOptions()))[:2]
    assert [(p["repetition"], p["prefill_ns"]) for p in found] == [(0, 68685386), (1, 68771475)]


def test_csv_keeps_the_mean_and_the_spread() -> None:
    result = read(REAL / "smollm2.csv", ImportOptions())
    assert passes(result)[0]["prefill_ns"] == 811332049
    assert result.manifest_fields["extra"]["stddev_ns"]["0"] == 348599141
    assert any("mean of a row" in text for text in result.cannot_say)


def test_md_times_come_from_tokens_per_second() -> None:
    result = read(REAL / "smollm2.md", ImportOptions())
    assert passes(result)[0]["prefill_ns"] == round(32e9 / 462.70)
    assert result.manifest_fields["extra"]["llama_bench"]["build_number"] == 1
    assert any("two decimals" in text for text in result.cannot_say)


@given(cut=st.integers(1, 6900))
@settings(max_examples=40, deadline=None)
def test_a_cut_json_array_keeps_its_whole_rows(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    text = (REAL / "smollm2.json").read_text()[:cut]
    path = tmp_path_factory.mktemp("cut") / "cut.json"
    path.write_text(text)
    n_whole = text.count("\n  }")
    if n_whole == 0:
        with pytest.raises(HprofError):
            read(path, ImportOptions())
        return
    result = read(path, ImportOptions())
    assert len(passes(result)) == 2 * n_whole
    assert any("ends inside a row" in warning for warning in result.warnings)


@given(cut=st.integers(1, 1200))
@settings(max_examples=60, deadline=None)
def test_a_cut_md_table_gives_no_rate_that_is_not_in_it(cut: int) -> None:
    text = (REAL / "smollm2.md").read_text()
    whole = [row["avg_ts"] for row in parse_md(text).rows]
    kept = [row["avg_ts"] for row in parse_md(text[:cut]).rows]
    assert kept == whole[: len(kept)]
    assert len(kept) == len(re.findall(r"± .*\|", text[:cut]))


def test_log_lines_around_the_rows_are_skipped(tmp_path: Path) -> None:
    text = (
        "ggml_cuda_init: found 1 CUDA devices:\n  Device 0: [H200]\n"
        + jsonl([row()])
        + "llama_perf: done\n"
        + jsonl([row(test_time="2026-10-05T09:31:00Z")])
    )
    assert len(passes(imported(tmp_path, text))) == 6


def test_a_jsonl_row_cut_off_at_the_end_is_counted(tmp_path: Path) -> None:
    result = imported(tmp_path, jsonl([row(), row()])[:-40])
    assert len(passes(result)) == 3
    assert result.dropped == {"rows that cannot be read": 1}


def test_sql_values_are_not_escaped_and_never_executed(tmp_path: Path) -> None:
    columns = ["model_filename", "tensor_buft_overrides", "n_prompt", "n_gen", "avg_ns"]
    values = "'/it's/a; DROP TABLE x;.gguf', 'a|(b)=CPU', '512', '0', '77'"
    insert = f"INSERT INTO test ({', '.join(columns)}) VALUES ({values});"
    result = imported(tmp_path, "CREATE TABLE IF NOT EXISTS test (\n  a TEXT\n);\n\n" + insert + "\n")
    assert passes(result)[0]["prefill_ns"] == 77
    assert result.manifest_fields["extra"]["llama_bench"]["model_filename"] == "/it's/a; DROP TABLE x;.gguf"


def test_a_sqlite_dump_names_its_columns_in_the_create_table(tmp_path: Path) -> None:
    dump = (
        "PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;\n"
        "CREATE TABLE llama_bench (\n  n_prompt INTEGER,\n  n_gen INTEGER,\n"
        "  model_filename TEXT,\n  avg_ns INTEGER\n);\n"
        "INSERT INTO llama_bench VALUES(512,0,'it''s.gguf',88);\nCOMMIT;\n"
    )
    result = imported(tmp_path, dump)
    assert passes(result)[0]["prefill_ns"] == 88
    assert result.manifest_fields["model"]["path"] == "it's.gguf"


def test_a_sql_row_of_another_width_is_counted(tmp_path: Path) -> None:
    good = "INSERT INTO t (n_prompt, n_gen, avg_ns) VALUES ('512', '0', '5');\n"
    assert imported(tmp_path, good + "INSERT INTO t (n_prompt, n_gen, avg_ns) VALUES ('5');\n").dropped.total() == 1


def test_the_bars_of_a_pattern_in_md_are_told_from_columns(tmp_path: Path) -> None:
    text = (
        "| model | size | params | backend | ngl | n_ubatch | fa | ot | lm | test | t/s |\n"
        "| --- | ---: | ---: | --- | --: | ---: | --: | --- | ---: | ---: | ---: |\n"
        "| qwen3moe 30B | 17.28 GiB | 30.53 B | CUDA | 99 | 2048 | 1 | ffn_(up|down|gate)_exps=CPU "
        "| none | pp2048 @ d10000 | 1696.78 ± 4.22 |\n"
        "\nbuild: 0a1b2c3d4 (11325)\n"
    )
    result = imported(tmp_path, text)
    (only,) = passes(result)
    assert (only["n_prompt"], only["n_gen"], only["n_depth"], only["n_ubatch"]) == (2048, 0, 10000, 2048)
    shared = result.manifest_fields["extra"]["llama_bench"]
    assert (shared["tensor_buft_overrides"], shared["load_mode"]) == ("ffn_(up|down|gate)_exps=CPU", "none")
    assert shared["build_commit"] == "0a1b2c3d4"
    assert shared["model_size"] == round(17.28 * 2**30)


def test_old_fields_are_read_by_name(tmp_path: Path) -> None:
    old = row(n_depth=None, load_mode=None, flash_attn=False, use_mmap=True, defrag_thold=-1.0)
    result = imported(tmp_path, jsonl([old]))
    assert passes(result)[0]["n_depth"] == 0
    assert result.manifest_fields["placement"]["use_mmap"] == 1
    assert result.manifest_fields["extra"]["llama_bench"]["flash_attn"] == 0


def test_ik_llama_rows_may_name_the_test_alone(tmp_path: Path) -> None:
    ik = row(n_prompt=None, n_gen=None, n_depth=None, test="tg128", mla_attn=3, fused_moe=True, samples_ns=None)
    (only,) = passes(imported(tmp_path, jsonl([ik])))
    assert (only["n_prompt"], only["n_gen"], only["decode_ns"], only["n_decoded"]) == (0, 128, 1000, 128)


def test_sweep_bench_rows_time_prompt_and_generation_apart(tmp_path: Path) -> None:
    sweep: dict[str, float] = {
        "n_kv_max": 8192,
        "n_batch": 2048,
        "n_ubatch": 512,
        "flash_attn": 1,
        "n_gpu_layers": 99,
        "n_threads": 16,
    }
    sweep |= {"pp": 512, "tg": 128, "n_kv": 1024, "t_pp": 0.123456, "speed_pp": 1.0, "t_tg": 2.5, "speed_tg": 1.0}
    parallel = sweep | {"pl": 4}
    result = imported(tmp_path, "\n".join(map(json.dumps, [sweep, parallel])))
    (only,) = passes(result)
    assert (only["n_prompt"], only["n_gen"], only["n_depth"]) == (512, 128, 1024)
    assert (only["prefill_ns"], only["decode_ns"], only["n_decoded"]) == (123_456_000, 2_500_000_000, 128)
    assert result.dropped == {"rows of parallel sequences": 1}


def test_a_prompt_and_generation_test_has_one_time(tmp_path: Path) -> None:
    result = imported(tmp_path, jsonl([row(n_gen=16, avg_ns=500, samples_ns=[500], samples_ts=None)]))
    (only,) = passes(result)
    assert (only["prefill_ns"], only["decode_ns"], only["t_end"] - only["t_start"]) == (None, None, 500)
    assert any("one time for both" in text for text in result.cannot_say)


@pytest.mark.parametrize("text", ["", "nothing here\n", "{}\n", "[]", '{"n_prompt": 5}\n'])
def test_a_file_without_rows_is_one_clear_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(HprofError, match=r"bench\.txt"):
        imported(tmp_path, text)


_JUNK = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6) | st.just([1])


@given(changes=st.dictionaries(st.sampled_from(sorted(row())), _JUNK, max_size=6))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_wrong_types_are_counted_not_crashed_on(tmp_path: Path, changes: dict[str, object]) -> None:
    result = imported(tmp_path, jsonl([row()]) + jsonl([row() | changes]))
    assert len(passes(result)) >= 3
    assert all(p["t_end"] >= p["t_start"] for p in passes(result))
    assert len(arms(result)) <= 2


@pytest.mark.parametrize("name", ["json", "jsonl", "csv", "sql", "md"])
@given(flips=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=30))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_files_never_give_a_traceback(tmp_path: Path, name: str, flips: list[tuple[int, int]]) -> None:
    data = bytearray((REAL / f"smollm2.{name}").read_bytes())
    for at, value in flips:
        data[at % len(data)] = value
    path = tmp_path / "mutated"
    path.write_bytes(bytes(data))
    try:
        assert passes(read(path, ImportOptions()))
    except HprofError:
        return


_IMPOSSIBLE = [[0, 5, 7], [-3, 5, 7], ["a", 5, 7], [None], [5.5, 6, 7], [1003, 997], [], "1003", [2**60, 1, 2]]


@pytest.mark.parametrize("samples", _IMPOSSIBLE)
def test_impossible_samples_give_the_mean_and_a_warning(tmp_path: Path, samples: object) -> None:
    result = imported(tmp_path, jsonl([row(samples_ns=samples), row(n_depth=64)]))
    assert [p["prefill_ns"] for p in passes(result)] == [1000, 1003, 997, 1000]
    (warning,) = result.warnings
    assert warning.startswith("1 row whose samples_ns cannot be")
    assert warning.endswith("each is one pass, the row's mean.")
    assert not any("not in this format" in text for text in result.cannot_say)


def test_impossible_means_and_samples_with_another_mean_are_said(tmp_path: Path) -> None:
    rows = [row(avg_ns=-1, samples_ns=None, samples_ts=None), row(n_depth=1, samples_ns=[1003, 997, 4000])]
    result = imported(tmp_path, jsonl(rows))
    assert [p["prefill_ns"] for p in passes(result)] == [1000, 1003, 997, 4000]
    assert [text.split(":")[0] for text in result.warnings] == [
        "1 row whose avg_ns cannot be",
        "1 row whose samples_ns have another mean than their avg_ns",
    ]


@pytest.mark.parametrize("name", ["json", "jsonl", "csv", "sql", "md"])
def test_nothing_is_doubted_in_real_rows(name: str) -> None:
    assert read(REAL / f"smollm2.{name}", ImportOptions()).warnings == []


def test_sizes_that_are_no_numbers_are_said_or_leave_the_row_out(tmp_path: Path) -> None:
    result = imported(
        tmp_path, jsonl([row(), row(n_ubatch=0, n_depth=1), row(n_ubatch="many"), row(n_depth="deep"), row(n_depth=-1)])
    )
    assert [p["n_ubatch"] for p in passes(result)] == [512] * 3 + [None] * 6
    assert [text for text in result.warnings if "n_ubatch" in text] == [
        "2 rows whose n_ubatch is no size: they count as of an unknown ubatch."
    ]
    (reason,) = result.dropped
    assert "n_depth that is no number" in reason
    assert result.dropped[reason] == 2


@pytest.mark.parametrize("name", ["json", "jsonl", "csv", "sql"])
def test_a_file_put_after_itself_counts_once(tmp_path: Path, name: str) -> None:
    text = (REAL / f"smollm2.{name}").read_text()
    once = imported(tmp_path, text)
    rows = json.loads(text) if name == "json" else None
    twice = imported(tmp_path, json.dumps(rows * 2) if rows else text + text)
    assert passes(twice) == passes(once)
    assert twice.dropped == {"rows that repeat another one to the last digit": len(_TESTS)}


@pytest.mark.parametrize("rest", ["I", "INSERT IN", "INSERT INTO llama_bench (n_pr"])
def test_sql_that_ends_inside_a_statement_says_so(tmp_path: Path, rest: str) -> None:
    result = imported(tmp_path, (REAL / "smollm2.sql").read_text() + rest)
    assert any("ends inside a row" in warning for warning in result.warnings)
