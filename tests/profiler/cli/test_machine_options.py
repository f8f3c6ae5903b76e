"""Rates by flag and by name, for `--device sim`: they decide its times, and the manifest keeps them."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

import hprof
from profiler.capture import Capture

Captured = pytest.CaptureFixture[str]
RUN = ["run", "-m", "tiny-dense", "-p", "64", "-n", "0", "-ub", "64", "-r", "1", "--arms", "off", "--json"]


def rates(path: Path, *flags: str) -> dict[str, float]:
    assert hprof.main([*RUN, "--device", "sim", *flags, "-o", str(path)]) == 0
    found = orjson.loads((path / "manifest.json").read_bytes())["machine"]["rates"]
    assert isinstance(found, dict)
    return found


def test_a_known_machine_and_a_rate_of_its_own(tmp_path: Path) -> None:
    found = rates(tmp_path / "a", "--gpu", "rtx4090", "--link", "gen4x16", "--cpu-gb-s", "80", "--memory-gb-s", "7")
    assert found["memory_gb_s"] == 7
    assert found["gemm_tflop_s"] == 165.2 * 0.69
    assert found["link_gb_s"] == 25.9
    assert found["host_memory_gb_s"] == 80
    assert found["memory_bytes"] == 24 * 2**30


def test_a_gpus_name_tells_which_of_its_rates_are_others(tmp_path: Path, capsys: Captured) -> None:
    rates(tmp_path / "a", "--gpu", "rtx4090", "--memory-gb-s", "7", "--device-memory", "12GiB")
    assert hprof.main(["report", str(tmp_path / "a")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "rtx4090 (but for --memory-gb-s and --device-memory); link" in told


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--link", "gen4x16", "--link-gb-s", "3"], "--link gen4x16 and --link-gb-s 3 both say how fast the link is"),
        (
            ["--gpu", "rtx4090", "--gemm-tflop-s", "1", "--memory-gb-s", "2", "--device-memory", "3GiB"],
            "--gpu rtx4090 does nothing beside --gemm-tflop-s, --memory-gb-s and --device-memory",
        ),
    ],
)
def test_a_name_that_flags_leave_nothing_of_is_refused(
    tmp_path: Path, capsys: Captured, flags: list[str], said: str
) -> None:
    assert hprof.main([*RUN, "--device", "sim", *flags, "-o", str(tmp_path / "a")]) == 2
    assert said in capsys.readouterr().err


def test_slower_products_take_longer(tmp_path: Path) -> None:
    times = []
    for number, rate in enumerate(("100", "0.001")):
        rates(tmp_path / str(number), "--gemm-tflop-s", rate)
        times.append(Capture.open(tmp_path / str(number)).passes["ttft_ns"].iloc[-1])
    assert times[1] > 2 * times[0]


def test_a_rate_does_nothing_on_other_devices(tmp_path: Path) -> None:
    assert hprof.main([*RUN, "--device", "cpu", "--gemm-tflop-s", "1", "-o", str(tmp_path / "a")]) == 0
    warnings = Capture.open(tmp_path / "a").warnings
    assert any("--gemm-tflop-s does nothing in this run: device cpu has rates of its own" in text for text in warnings)


def test_what_does_not_fit_the_memory_is_refused(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    assert hprof.main([*RUN, "--device", "sim", "--device-memory", "64KiB", "-o", str(tmp_path / "a")]) == 2
    assert "64 KiB are free" in capsys.readouterr().err
