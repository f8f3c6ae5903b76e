"""Flags of llama.cpp: taken where they come to the same, or refused with what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.errors import HprofError
from profiler.cli.asked import AskedOptions
from profiler.cli.llama_flags import OFFLOAD_VARIABLE, settle_llama_flags, variables_used
from profiler.cli.run import command
from profiler.cli.run_request import build_request
from profiler.planning.plan import plan_run
from profiler.planning.request import RunRequest


def request_of(*arguments: str) -> RunRequest:
    """What `hprof run` would be asked with these arguments."""
    context = command.make_context("run", ["--device", "sim", *arguments])
    return build_request(settle_llama_flags(AskedOptions.of(context)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-pg", "512,128"], "^-pg 512,128 is llama.cpp's: .* as -p 512 -n 16"),
        (["-mg", "1"], "^-mg 1 is llama.cpp's: .*-ts"),
        (["-nopo", "1"], "^-nopo 1 is llama.cpp's: .*--arms off,cpu"),
        (["-nkvo", "1"], "^-nkvo 1 is llama.cpp's: .* leave it out"),
        (["-dev", "CUDA0/CUDA1"], "^-dev CUDA0/CUDA1 is llama.cpp's: .*CUDA_VISIBLE_DEVICES"),
        (["-o", "json"], "^-o json: -o is the capture's folder here, so print JSON with --json"),
        (["-o", "md"], "^-o md: -o is the capture's folder"),
        (["-mmp", "0,1"], "^-mmp 0,1: give 1 for -lm mmap or 0 for -lm none"),
        (["-mmp", "1", "-lm", "none"], "^-mmp 1 and -lm both"),
        (["-cmoe", "-ncmoe", "2"], "^-cmoe is -ncmoe with every layer"),
        (["-ngl", "auto"], "^-ngl auto: .*--vram-budget"),
    ],
)
def test_a_flag_that_is_not_ours_has_its_own_sentence(arguments: list[str], message: str) -> None:
    with pytest.raises(HprofError, match=message):
        request_of(*arguments)


@pytest.mark.parametrize("flag", ["-mg", "-nopo", "-nkvo"])
def test_what_asks_for_what_is_done_anyway_is_taken(flag: str) -> None:
    assert request_of(flag, "0") == request_of()


@pytest.mark.parametrize(("value", "mode"), [("1", "mmap"), ("0", "none")])
def test_mmp_is_a_load_mode(value: str, mode: str) -> None:
    assert request_of("-mmp", value).load_mode == mode


def test_cmoe_is_every_layers_experts() -> None:
    [setup] = plan_run(request_of("-m", "tiny-moe", "-cmoe")).setups
    assert setup.placement.host_layers() == [0, 1, 2, 3, 4, 5]
    assert all("_exps" in name for name in setup.placement.host)


@pytest.mark.parametrize(("text", "first"), [("all", 0), ("99", 0), ("9", 0), ("8", 1), ("1", 8)])
def test_ngl_as_llama_cpp_counts(text: str, first: int) -> None:
    plan = plan_run(request_of("-ngl", text))
    assert plan.setups[0].placement.host_layers() == list(range(first))


def test_the_variable_counts_where_no_flag_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFFLOAD_VARIABLE, "64")
    assert request_of().policy.op_offload_min_batch == 64
    assert request_of("--op-offload-min-batch", "16").policy.op_offload_min_batch == 16
    usual, typed = AskedOptions({}, frozenset()), AskedOptions({}, frozenset({"op_offload_min_batch"}))
    assert variables_used(usual) == [f"{OFFLOAD_VARIABLE}=64 in the environment is used as --op-offload-min-batch."]
    assert variables_used(typed) == []


def test_a_variable_without_a_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFFLOAD_VARIABLE, "many")
    with pytest.raises(HprofError, match="is 'many', not a number of tokens"):
        request_of()


def warnings_of(*arguments: str) -> list[str]:
    return [text for text in plan_run(request_of(*arguments)).warnings if "-ot" in text]


def test_overrides_that_were_meant_as_one_are_told() -> None:
    [told] = warnings_of("-ot", "ffn_up=CPU", "-ot", "ffn_down=CPU")
    assert told.startswith("Two configurations have no weight in common; each -ot")
    assert "';' joins overrides" in told
    assert warnings_of("-ot", "ffn_up=CPU", "-ot", "ffn_(up|down)=CPU") == []
    assert warnings_of("-ot", "ffn_up=CPU;ffn_down=CPU") == []


def test_a_refusal_for_memory_says_how_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise HprofError("model needs 9 GiB and 1 GiB are free.")

    monkeypatch.setattr("profiler.planning.plan.check_needs", refuses)
    with pytest.raises(HprofError, match=r"are free; each -ot .*';' joins overrides, as 'a=CPU;b=CPU'\.$"):
        plan_run(request_of("-ot", "ffn_up=CPU", "-ot", "ffn_down=CPU"))
    with pytest.raises(HprofError, match=r"are free\.$"):
        plan_run(request_of("-ot", "ffn_up=CPU"))


def test_what_an_override_does_not_do_is_a_warning_of_the_run() -> None:
    [told] = warnings_of("-ot", "ffn=CPU;output.weight=CPU")
    assert "and not output.weight" in told


def test_a_folder_may_still_be_called_json(tmp_path: Path) -> None:
    context = command.make_context("run", ["-o", str(tmp_path / "json")])
    assert (settle_llama_flags(AskedOptions.of(context)).output or "").endswith("json")
