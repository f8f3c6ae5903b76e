"""`hprof run --vram-budget` and `-ts`: placements by arm, what slots cost, layers shared out over devices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import hprof
from profiler.capture import Capture
from profiler.report.build import build_report


def _run(tmp_path: Path, *options: str) -> Capture:
    out = tmp_path / "capture"
    common = ["-m", "tiny-moe", "-p", "64", "-n", "3", "-ub", "64", "-r", "1", "-o", str(out)]
    assert hprof.main(["run", *common, *options]) == 0
    return Capture.open(str(out))


def _effective(capture: Capture) -> dict[str, dict[str, Any]]:
    return {arm.name: arm.options["effective"] for arm in capture.manifest.arms}


def test_the_second_slot_is_paid_in_resident_layers(tmp_path: Path) -> None:
    capture = _run(tmp_path, "--device", "cpu", "--arms", "off,on,full", "--vram-budget", "22MiB")
    arms = _effective(capture)
    assert len(arms["on"]["host_layers"]) == len(arms["off"]["host_layers"]) + 1
    assert arms["full"]["host_layers"] == []
    peaks = capture.passes.set_index("arm")["vram_peak"]
    assert (peaks[["off", "on"]] <= 22 << 20).all()
    (cell,) = build_report(capture).cells
    assert cell.same_tokens is True
    assert cell.bit_identical is None, "the arms decode in different places, which may round differently"
    measured = capture.passes[~capture.passes["warmup"]]
    assert measured["logits_digest"].nunique() == 1, "in float32 it does not"


def test_the_budget_is_each_device_s(tmp_path: Path) -> None:
    capture = _run(tmp_path, "--device", "sim", "--arms", "off", "--vram-budget", "15MiB", "-ts", "5/7")
    host = _effective(capture)["off"]["host_layers"]
    assert 0 < sum(layer < 3 for layer in host) < 3, host  # each device keeps some of its own
    assert 0 < sum(layer >= 3 for layer in host) < 3, host


def test_shares_of_the_layers(tmp_path: Path) -> None:
    capture = _run(tmp_path, "--device", "sim", "--arms", "off,on", "-ts", "1/1")
    events = capture.frame("events")
    layers = events.dropna(subset=["layer", "device"]).groupby("device")["layer"].nunique()
    assert (layers[0], layers[1]) == (4, 2)  # the output counts as a layer


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--vram-budget", "1MiB"], "too small for arm 'on'"),
        (["--vram-budget", "much"], "is not a size"),
        (["--vram-budget", "1GiB", "-ncmoe", "2"], "leave out -ot, -ncmoe and -ngl"),
        (["-ts", "1/x"], "is not a list of shares"),
        (["-ts", "100/1"], "leaves a device without any"),
    ],
)
def test_what_cannot_be_placed(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hprof.main(["run", "-m", "tiny-moe", "--device", "sim", "-o", str(tmp_path / "c"), *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arms", ["off,on", "off,on,full"])
def test_arms_that_share_a_budget_s_device_are_told_the_budget_that_fits_all(
    arms: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `off` keeps resident and the second slot of `on` lie beside each other, above what either may hold."""
    run = ["run", "-m", "tiny-moe", "--device", "sim", "--device-memory", "22MiB", "-r", "1", "-p", "64", "-n", "3"]
    run += ["-o", str(tmp_path / "c")]
    assert hprof.main([*run, "--arms", arms, "--vram-budget", "22MiB"]) == 2
    said = capsys.readouterr().err
    assert "of device memory for this run and 22 MiB are free" in said
    (smaller,) = re.findall(r"--vram-budget (\d+MiB)", said)
    assert ("--arms off,on with --vram-budget" in said) is ("full" in arms)
    assert hprof.main([*run, "--arms", "off,on", "--vram-budget", smaller]) == 0
