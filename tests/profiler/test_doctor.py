"""Each check of `hprof doctor` held to machines that are not there, and to the one that is."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hprof import main
from profiler.doctor import (
    State,
    cuda_check,
    disk_check,
    governor_check,
    link_check,
    load_check,
    memory_check,
    nsys_check,
    packages_check,
    recorder_check,
)

H200 = {"name": "NVIDIA H200", "memory_mib": 143_771, "driver": "580.1", "pcie_generation": 5, "pcie_width": 16}
HALF = H200 | {"pcie_generation_now": 5, "pcie_width_now": 8}


@pytest.mark.parametrize(
    ("gpus", "n_seen", "torch_cuda", "state", "said"),
    [
        ([H200], 1, "13.0", "ok", "NVIDIA H200 with 140 GiB; driver 580.1, torch 2.11 for CUDA 13.0."),
        ([H200], 0, None, "poor", "is a build for CPUs"),
        ([H200], 0, "13.0", "poor", "does not see it"),
        ([], 0, None, "absent", "No NVIDIA GPU"),
        ([], 1, "13.0", "ok", "1 GPU(s); driver unknown"),
    ],
)
def test_whether_torch_sees_the_gpus(
    gpus: list[dict[str, Any]], n_seen: int, torch_cuda: str | None, state: State, said: str
) -> None:
    found = cuda_check(gpus, n_seen, torch_cuda, "2.11")
    assert found.state == state
    assert said in found.fact
    assert (found.advice is None) == (state == "ok")


@pytest.mark.parametrize(
    ("gpu", "measured", "state", "said"),
    [
        (H200, 55.0, "ok", "PCIe Gen5 x16 reaches"),
        (HALF, 26.0, "poor", "at present it runs at Gen5 x8"),
        ({}, 12.0, "ok", "what such a link reaches is not known here"),
        (H200, "the driver refused", "poor", "Pinned memory could not be copied from: the driver refused"),
    ],
)
def test_a_link_is_held_against_its_generation(
    gpu: dict[str, Any], measured: float | str, state: State, said: str
) -> None:
    found = link_check(0, gpu, measured)
    assert found.state == state
    assert said in found.fact


def test_a_loaded_machine_is_told_with_its_processors() -> None:
    loaded = load_check({"load_1min": 14.0, "usable_threads": 2, "cpu": "AMD EPYC"})
    assert (loaded.state, loaded.fact) == ("poor", "Load 14.0 on 2 processors, AMD EPYC.")
    assert load_check({"load_1min": 0.5, "usable_threads": 2}).state == "ok"
    assert load_check({"load_1min": None}).state == "absent"


def test_clocks_and_memory() -> None:
    assert [governor_check(name).state for name in ("performance", "powersave", None)] == ["ok", "poor", "absent"]
    assert [memory_check(n, 100).state for n in (60, 10)] == ["ok", "poor"]


def test_the_disk_is_that_of_the_nearest_folder_that_is_there(tmp_path: Path) -> None:
    assert disk_check(str(tmp_path / "not" / "yet")).state in ("ok", "poor")
    (tmp_path / "file").touch()
    assert disk_check(str(tmp_path / "file")).state == "broken"
    assert disk_check("s3://bucket/traces").state == "absent"


def test_a_package_of_another_project_is_named_with_its_place(tmp_path: Path) -> None:
    places = {"executor": tmp_path / "executor", "dashboard": tmp_path / "theirs" / "dashboard"}
    found = packages_check(places, tmp_path)
    assert found.state == "broken"
    assert f"dashboard at {tmp_path / 'theirs' / 'dashboard'}" in found.fact
    assert packages_check({"executor": tmp_path / "executor"}, tmp_path).state == "ok"


def test_a_tool_that_is_missing_is_said_with_what_it_is_for() -> None:
    found = nsys_check(None)
    assert found.state == "absent"
    assert ".nsys-rep" in str(found.advice)


def test_this_machine_is_told_in_lines_and_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path)]) == 0
    lines = capsys.readouterr().out
    assert main(["doctor", str(tmp_path), "--json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert all(f"{check['name']}: " in lines for check in checks)
    assert {"hprof", "cuda", "nsys", "load", "disk"} <= {check["name"] for check in checks}
    assert main(["doctor", str(Path(__file__))]) == 1


@pytest.mark.parametrize(("has_gpu", "state"), [(True, "ok"), (False, "absent")])
def test_without_a_gpu_the_recorder_has_nothing_to_record(
    has_gpu: bool, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = [SimpleNamespace(cuda_major=13)]
    for name, found in (("find_headers", headers), ("find_libraries", ["libcupti.so"])):
        monkeypatch.setattr(f"profiler.recording.cupti_files.{name}", lambda found=found: found)
    monkeypatch.setattr("executor.compiling.find_compiler", lambda: "g++")
    check = recorder_check(has_gpu=has_gpu)
    assert check.state == state
    assert ("hprof run --engine command" in (check.advice or "")) is not has_gpu
