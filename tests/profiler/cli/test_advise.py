"""`hprof advise`: its three lines, its JSON, llama.cpp's command, and what it says when it runs the best."""

from __future__ import annotations

import subprocess
import sys

import orjson
import pytest

import hprof
from tests.support import ROOT

ASKED = ["advise", "-m", "tiny-moe", "-p", "96", "-n", "8", "--arms", "off,on"]
RATES = ["--vram-budget", "24MiB", "--link-gb-s", "4", "--gemm-tflop-s", "0.1", "--memory-gb-s", "10"]
Printed = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("own_cache")


def test_three_lines_answer_first(capsys: Printed) -> None:
    assert hprof.main([*ASKED, *RATES]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("set: --arms ")
    assert any(line.startswith("gives: TTFT") for line in lines[:4])
    assert any(line.startswith("sure: from rates alone") for line in lines[:6])


def test_what_it_gives_is_told_of_each_depth(capsys: Printed) -> None:
    """Two times stood for one prompt, and which was of which depth stood nowhere."""
    assert hprof.main([*ASKED, *RATES, "--vram-budget", "30MiB", "-d", "0,64"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert " at -p 96 -d 0, TTFT " in told
    assert " at -p 96 -d 64 and decode " in told


def test_advice_by_rates_imports_nothing_that_it_does_not_need() -> None:
    """Each takes half a second: sympy, which torch imports for a range on its meta device, and scipy, which fits."""
    words = [*ASKED, *RATES]
    told = (
        f"import sys, hprof; hprof.main({words}); print('modules', *(one in sys.modules for one in ('scipy', 'sympy')))"
    )
    done = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "modules False False"


def test_json_has_the_best_and_the_front(capsys: Printed) -> None:
    assert hprof.main([*ASKED, *RATES, "--json", "--objective", "ttft"]) == 0
    found = orjson.loads(capsys.readouterr().out)
    assert found["objective"] == "ttft"
    times = [one["ttft_ns_predicted"] for one in found["best"]]
    assert times == sorted(times)
    assert found["pareto"]
    assert found["next_gib"]["resident layers"] >= 0


def test_llama_cpp_gets_a_command_without_flags_that_it_lacks(capsys: Printed) -> None:
    assert hprof.main(["advise", "-m", "tiny-moe", "-p", "96", "-n", "8", *RATES, "--for", "llama.cpp", "--json"]) == 0
    command = orjson.loads(capsys.readouterr().out)["llama_cpp"]
    assert "llama-bench -m tiny-moe.gguf -p 96 -n 8 -ngl 999 -fa 1 --load-mode none -ub " in command
    assert "-pw" not in command
    assert hprof.main([*ASKED, *RATES, "--for", "llama.cpp", "--prefetch-build", "--json"]) == 0
    assert "-pw " in orjson.loads(capsys.readouterr().out)["llama_cpp"]


def test_what_llama_cpp_is_to_do_is_told_in_its_own_words(capsys: Printed) -> None:
    """One command to serve by, and one to measure: the same flags, but for how they join overrides and shares."""
    words = ["advise", "-m", "tiny-moe", "-p", "96", "-n", "8", "-d", "64", *RATES, "--vram-budget", "20MiB"]
    words += ["--arms", "off", "--for", "llama.cpp"]
    assert hprof.main([*words, "--json"]) == 0
    found = orjson.loads(capsys.readouterr().out)
    override = found["best"][0]["override_tensor"]
    assert ";" in override
    assert hprof.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    [to_set] = [line for line in lines if line.startswith("set: ")]
    assert to_set == f"set: {found['llama_cpp_server']}"
    assert "--arms" not in to_set
    assert "llama-server -m tiny-moe.gguf -c 168 -ngl 999" in to_set
    assert override.replace(";", ",") in to_set
    measured = lines[lines.index(found["llama_cpp"]) - 1]
    assert measured == (
        "llama-cli takes the same flags, and llama-bench too, with -p, -n and -d in place of -c and ; in -ot:"
    )
    assert f'-ot "{override}"' in found["llama_cpp"]


def test_what_is_copied_from_the_screen_has_no_line_breaks(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    """One inside the quotes of `-ot` would become a part of the pattern."""
    monkeypatch.setenv("COLUMNS", "40")
    words = [*ASKED, *RATES, "--for", "llama.cpp"]
    assert hprof.main([*words, "--json"]) == 0
    command = orjson.loads(capsys.readouterr().out)["llama_cpp"]
    assert len(command) > 40
    assert hprof.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert command in lines
    [to_set] = [line for line in lines if line.startswith("set: ")]
    assert to_set.count('"') % 2 == 0


def test_llama_cpp_s_command_has_the_split_and_the_depth_that_were_asked_for(capsys: Printed) -> None:
    words = [*ASKED, *RATES, "--for", "llama.cpp", "-d", "64", "--n-devices", "2", "-ts", "3/1", "--json"]
    assert hprof.main(words) == 0
    found = orjson.loads(capsys.readouterr().out)
    assert " -ts 3/1 " in found["llama_cpp"]
    assert " -ts 3,1 " in found["llama_cpp_server"]
    assert " -d 64" in found["llama_cpp"]
    assert hprof.main(words[:-1]) == 0
    assert "in place of -c and / in -ts:" in capsys.readouterr().out


def test_a_budget_is_no_more_than_the_card_has(capsys: Printed) -> None:
    words = ["advise", "-m", "qwen3-30b-a3b", "-p", "512", "-n", "8", "--arms", "off", "--gpu", "rtx3060"]
    assert hprof.main([*words, "--link", "gen4x16", "--vram-budget", "200GiB", "--json"]) == 0
    found = orjson.loads(capsys.readouterr().out)
    assert found["vram_budget_bytes"] == 12 << 30
    assert any(
        "12 GiB: that is the budget" in note or "12.0 GiB: that is the budget" in note for note in found["notes"]
    )
    assert all(one["vram_bytes"] + one["reserve_bytes"] <= 12 << 30 for one in found["best"])


def test_devices_may_have_a_budget_each(capsys: Printed) -> None:
    words = [*ASKED, *RATES, "--n-devices", "2", "--vram-budget", "16MiB,12MiB", "--for", "llama.cpp", "--arms", "off"]
    assert hprof.main([*words, "--json"]) == 0
    found = orjson.loads(capsys.readouterr().out)
    assert found["vram_budget_bytes"] == 12 << 20
    assert found["vram_budget_bytes_by_device"] == [16 << 20, 12 << 20]
    assert " -ts 1/1 " in found["llama_cpp"]  # which llama.cpp would else choose by the memory that is free
    assert hprof.main([*ASKED, *RATES, "--vram-budget", "16MiB,12MiB"]) == 2
    assert "has 2 figures, and --n-devices is 1" in capsys.readouterr().err


def test_verify_runs_the_best(capsys: Printed) -> None:
    rates = ["--gemm-tflop-s", "0.1", "--memory-gb-s", "10"]
    words = [*rates, "--vram-budget", "40MiB", "--device", "cpu", "--verify", "1", "--layers", "2", "--json"]
    assert hprof.main([*ASKED, *words]) == 0
    [one] = orjson.loads(capsys.readouterr().out)["verified"]
    assert one["ttft_ns"] > 0
    assert one["decode_ns"] > 0


def test_without_a_budget_there_is_none(capsys: Printed) -> None:
    assert hprof.main(ASKED) == 2
    assert "give --vram-budget, e.g. 24GiB, or --gpu" in capsys.readouterr().err


def test_rates_are_refused_beside_a_capture_that_shows_them(capsys: Printed) -> None:
    assert hprof.main([*ASKED, *RATES, "--fit", str(ROOT / "traces" / "example-sweep")]) == 2
    assert "--gpu and rates are not for --fit" in capsys.readouterr().err


def test_rates_of_no_machine_are_the_first_thing_said(capsys: Printed) -> None:
    assert hprof.main([*ASKED, "--vram-budget", "24MiB", "--link-gb-s", "4"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Rates of the device are sim's defaults and no machine's: run `hprof probe`")
    assert hprof.main([*ASKED, "--vram-budget", "24MiB", "--json"]) == 0
    found = orjson.loads(capsys.readouterr().out)
    assert found["notes"][0].startswith("Rates of the device and the link are sim's defaults")
    assert found["spread"] == {}


@pytest.mark.parametrize("words", [["--device", "cpu"], ["--verify", "1"]])
def test_a_real_device_that_nobody_measured_gets_no_advice(words: list[str], capsys: Printed) -> None:
    assert hprof.main([*ASKED, "--vram-budget", "24MiB", *words]) == 2
    assert "nobody measured how fast the" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "cpu", "--gpu", "rtx4090"], "--gpu says too little of the cpu device of this machine: give"),
        (
            ["--verify", "1", "--gpu", "rtx4090", "--cpu-gb-s", "60"],
            "--gpu and --host-memory-gb-s say too little of the",
        ),
    ],
)
def test_a_gpu_that_is_not_here_is_no_rate_of_the_cpu(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    """A probe would not be used beside them, so to ask for one alone would lead nowhere."""
    monkeypatch.setattr("executor.devices.factory.default_kind", lambda: "cpu")
    monkeypatch.setattr("profiler.cli.ground.default_kind", lambda: "cpu")
    assert hprof.main([*ASKED, "--vram-budget", "24MiB", *words]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert ("on which --verify runs" in told) is ("--verify" in words)
    assert "out and run `hprof probe --device cpu` once" in told


def test_placements_that_differ_look_different_and_the_reserve_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["advise", "-m", "tiny-moe", "-p", "96", "-n", "4", "--gpu", "rtx4090", "--link", "gen4x16"]
    assert hprof.main([*words, "--arms", "off,on", "--vram-budget", "28MiB"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "of states and activations" in told
    assert "spread" in told
    assert "down of 5 layers, spread" in told
