"""What a manifest says about the machine."""

from __future__ import annotations

import sys

import pytest

from profiler.facts import machine

ROW = "NVIDIA H200, GPU-1, 143771, 570.86, 5, 16, 4, 8, 700.00, 1980"


def test_gpus_as_nvidia_smi_lists_them() -> None:
    [gpu] = machine.parse_gpus(ROW + "\n")
    assert gpu["name"] == "NVIDIA H200"
    assert gpu["memory_mib"] == 143771
    assert (gpu["pcie_generation"], gpu["pcie_width"]) == (5, 16)
    assert (gpu["pcie_generation_now"], gpu["pcie_width_now"]) == (4, 8)
    assert gpu["driver"] == "570.86"


def test_what_nvidia_smi_does_not_know_is_null() -> None:
    [gpu] = machine.parse_gpus(ROW.replace("5, 16", "[N/A], [Not Supported]").replace("700.00", "many"))
    assert gpu["pcie_generation"] is gpu["pcie_width"] is gpu["power_limit_w"] is None


@pytest.mark.parametrize("text", ["", "\n", "No devices were found", "a, b"])
def test_other_output_is_no_gpu(text: str) -> None:
    assert machine.parse_gpus(text) == []


def test_commands_that_fail_say_nothing() -> None:
    assert machine.command_output(["hprof-no-such-program"]) is None
    assert machine.command_output([sys.executable, "-c", "raise SystemExit(3)"]) is None
    assert machine.command_output([sys.executable, "-c", "print('yes')"]) == "yes\n"


def test_a_machine_has_cores_memory_and_versions() -> None:
    described = machine.describe_machine()
    assert described["threads"] >= 1
    assert described["memory_bytes"] > 1 << 28
    assert described["python"].startswith("3.")
    assert isinstance(described["gpus"], list)


def test_variables_that_change_results_are_kept_and_secrets_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HPROF_API_TOKEN", "secret")
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    found = machine.result_variables()
    assert found["OMP_NUM_THREADS"] == "3"
    assert not {"HPROF_API_TOKEN", "SOMETHING_ELSE"} & set(found)
