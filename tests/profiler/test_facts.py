"""What a manifest says about machine and model."""

from __future__ import annotations

import subprocess
import sys

import pytest

from profiler import facts
from profiler.manifest import Manifest
from profiler.report.measured import what_was_measured
from tests.support import ROOT

ROW = "NVIDIA H200, GPU-1, 143771, 570.86, 5, 16, 4, 8, 700.00, 1980"


def test_gpus_as_nvidia_smi_lists_them() -> None:
    [gpu] = facts.parse_gpus(ROW + "\n")
    assert gpu["name"] == "NVIDIA H200"
    assert gpu["memory_mib"] == 143771
    assert (gpu["pcie_generation"], gpu["pcie_width"]) == (5, 16)
    assert (gpu["pcie_generation_now"], gpu["pcie_width_now"]) == (4, 8)
    assert gpu["driver"] == "570.86"


def test_what_nvidia_smi_does_not_know_is_null() -> None:
    [gpu] = facts.parse_gpus(ROW.replace("5, 16", "[N/A], [Not Supported]").replace("700.00", "many"))
    assert gpu["pcie_generation"] is gpu["pcie_width"] is gpu["power_limit_w"] is None


@pytest.mark.parametrize("text", ["", "\n", "No devices were found", "a, b"])
def test_other_output_is_no_gpu(text: str) -> None:
    assert facts.parse_gpus(text) == []


def test_commands_that_fail_say_nothing() -> None:
    assert facts.command_output(["hprof-no-such-program"]) is None
    assert facts.command_output([sys.executable, "-c", "raise SystemExit(3)"]) is None
    assert facts.command_output([sys.executable, "-c", "print('yes')"]) == "yes\n"


def test_a_machine_has_cores_memory_and_versions() -> None:
    described = facts.describe_machine()
    assert described["threads"] >= 1
    assert described["memory_bytes"] > 1 << 28
    assert described["python"].startswith("3.")
    assert isinstance(described["gpus"], list)


def test_variables_that_change_results_are_kept_and_secrets_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HPROF_API_TOKEN", "secret")
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    found = facts.result_variables()
    assert found["OMP_NUM_THREADS"] == "3"
    assert not {"HPROF_API_TOKEN", "SOMETHING_ELSE"} & set(found)


def test_a_checkout_knows_its_commit() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    found = facts.source_commit()
    assert found is not None
    told = facts.command_output(["git", "-C", str(ROOT), "rev-parse", "HEAD"])
    assert told is not None
    assert found["commit"] == told.strip()
    assert isinstance(found["dirty"], bool)


def test_facts_load_nothing_heavy() -> None:
    code = "import sys, profiler.facts; print({'torch', 'psutil', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("gpus", "names"),
    [
        ([{"name": "H100"}, {"name": "H100"}, {"name": "A100"}], ["2 x H100", "A100"]),
        ([{"name": "L4"}], ["L4"]),
        (5, []),
        ("H100", []),
        ([None, {}], ["GPU without a name"]),
    ],
)
def test_gpus_of_a_manifest_are_counted_by_name(gpus: object, names: list[str]) -> None:
    """Three of two kinds are not three of the first; what a stranger wrote there is no fault of ours."""
    machine = {"gpus": gpus, "cpu": "a processor"}
    assert facts.processors(machine) == [*names, "a processor"]
    manifest = Manifest(machine=machine)
    assert what_was_measured(manifest).machine == (", ".join(names) or "a processor")
