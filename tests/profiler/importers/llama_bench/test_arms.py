"""Arms are made of the settings that differ, named as on llama-bench's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.errors import HprofError
from profiler.importers.base import ImportOptions
from profiler.importers.llama_bench import read
from tests.profiler.importers.llama_bench.samples import REAL, arms, imported, jsonl, passes, row


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


def test_a_test_that_comes_again_is_another_process(tmp_path: Path) -> None:
    rows = [row(), row(test_time="2026-10-05T09:31:00Z")]
    found = [(p["boot"], p["repetition"]) for p in passes(imported(tmp_path, jsonl(rows)))]
    assert found == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


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
