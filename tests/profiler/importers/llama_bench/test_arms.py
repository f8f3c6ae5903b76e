"""Arms are made of the settings that differ, named as on llama-bench's command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from executor.errors import HprofError
from profiler.importers.base import ImportOptions
from profiler.importers.llama_bench import read
from tests.profiler.importers.llama_bench.samples import (
    REAL,
    arms,
    as_csv,
    as_insert,
    as_json,
    as_sql,
    imported,
    jsonl,
    passes,
    row,
)


def test_prefetch_alone_gives_off_and_on_with_off_first(tmp_path: Path) -> None:
    result = imported(tmp_path, jsonl([row(prefetch_weights=1), row(prefetch_weights=0)]))
    assert arms(result) == ["off", "on"]
    assert [p["arm"] for p in passes(result)] == ["on"] * 3 + ["off"] * 3
    assert result.manifest_fields["arms"][1].options == {"prefetch_weights": 1}
    assert any("one arm after the other" in warning for warning in result.warnings)


def test_a_ubatch_is_a_cell_and_no_arm(tmp_path: Path) -> None:
    result = imported(tmp_path, jsonl([row(n_ubatch=512), row(n_ubatch=2048, n_batch=4096)]))
    assert arms(result) == ["llama-bench"]
    assert {p["n_ubatch"] for p in passes(result)} == {512, 2048}


def test_what_only_follows_from_the_test_makes_no_arm() -> None:
    result = read(REAL / "h200_qwen3moe_ncmoe.jsonl", ImportOptions())
    assert arms(result) == ["ncmoe=99 lm=none", "ncmoe=99 lm=mmap", "ncmoe=0 lm=none"]


def test_a_batch_that_alone_tells_two_rows_apart_makes_arms(tmp_path: Path) -> None:
    assert arms(imported(tmp_path, jsonl([row(n_batch=512), row(n_batch=2048)]))) == ["b=512", "b=2048"]


def test_settings_that_change_together_are_named_once(tmp_path: Path) -> None:
    rows = [row(), row(model_filename="/models/other.gguf", model_type="llama", model_size=5, model_n_params=7)]
    assert arms(imported(tmp_path, jsonl(rows))) == ["m=moe.gguf", "m=other.gguf"]


def test_patterns_and_missing_values_have_names(tmp_path: Path) -> None:
    rows = [row(tensor_buft_overrides="ffn_.*=CPU"), row(tensor_buft_overrides=None)]
    assert arms(imported(tmp_path, jsonl(rows))) == ["ot=ffn_.*=CPU", "ot=default"]


@pytest.mark.parametrize("write", [jsonl, as_json, as_csv, as_sql])
def test_a_test_that_comes_again_in_one_output_is_no_boot(
    tmp_path: Path, write: Callable[[list[dict[str, Any]]], str]
) -> None:
    """As `llama-bench -p 512,512,512,512,512,512 -r 1 -fa 0,1` prints in one process."""
    result = imported(tmp_path, write(_tests_of(fa for fa in (0, 1) for _ in range(6))))
    assert [(p["arm"], p["boot"], p["repetition"]) for p in passes(result)] == [
        (f"fa={fa}", 0, repetition) for fa in (0, 1) for repetition in range(6)
    ]
    [warning] = [text for text in result.warnings if "tells processes apart" in text]
    assert warning.startswith("One output holds a test up to 6 times")


def test_arms_that_alternate_in_one_jsonl_are_one_process_each(tmp_path: Path) -> None:
    """As `llama-bench -fa 0,1,0,1,... -r 1` prints in one process; six of each once made six boots and a verdict."""
    result = imported(tmp_path, jsonl(_tests_of(fa for _ in range(6) for fa in (0, 1))))
    assert [(p["arm"], p["boot"], p["repetition"]) for p in passes(result)] == [
        (f"fa={fa}", 0, repetition) for repetition in range(6) for fa in (0, 1)
    ]


@pytest.mark.parametrize("write", [as_json, as_csv, as_sql])
def test_outputs_with_a_header_each_are_boots(tmp_path: Path, write: Callable[[list[dict[str, Any]]], str]) -> None:
    result = imported(
        tmp_path, "".join(write([row(test_time=f"{n}", avg_ns=1000 + n, samples_ns=None)]) for n in range(3))
    )
    assert [(p["boot"], p["repetition"]) for p in passes(result)] == [(0, 0), (1, 0), (2, 0)]


def test_one_process_that_prints_two_formats_is_one_boot(tmp_path: Path) -> None:
    rows = _tests_of([0] * 3)
    result = imported(tmp_path, "".join(text for one in rows for text in (as_insert(one), jsonl([one]))))
    assert {p["boot"] for p in passes(result)} == {0}
    result = imported(tmp_path, as_csv(rows) + jsonl(rows))
    assert [p["boot"] for p in passes(result)] == [0] * 6


def _tests_of(flash_attn: Iterable[int]) -> list[dict[str, Any]]:
    """A row of one repetition for each value of -fa, a second apart; fa=1 is 5 % faster."""
    return [
        row(flash_attn=fa, test_time=f"2026-10-05T09:30:{n:02}Z", avg_ns=ns, samples_ns=[ns], samples_ts=[1.0])
        for n, fa in enumerate(flash_attn)
        for ns in [500_000_000 + n if not fa else 475_000_000 + n]
    ]


def test_the_user_may_say_which_fields_make_arms(tmp_path: Path) -> None:
    rows = [
        row(load_mode="none", flash_attn=0),
        row(load_mode="mmap", flash_attn=1),
        row(load_mode="mmap", flash_attn=0),
    ]
    result = imported(tmp_path, jsonl(rows), arm_by=("load_mode",))
    assert arms(result) == ["lm=none", "lm=mmap"]
    assert any("differ in flash_attn" in warning for warning in result.warnings)


def test_an_unknown_field_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(HprofError, match=r"'prefetch'.*load_mode"):
        imported(tmp_path, jsonl([row()]), arm_by=("prefetch",))
