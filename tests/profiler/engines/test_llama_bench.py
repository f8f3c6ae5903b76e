"""`--arm NAME=FLAGS`. The real thing is driven as the fake is: arms in turn, rows kept, failures in one sentence."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

import pytest

from executor.errors import HprofError
from hprof import main
from profiler.capture import Capture
from profiler.compare import compare_captures
from profiler.engines.arms import EngineArm
from profiler.engines.bench_arms import parse_arm, parse_arms, without_overridden
from profiler.engines.llama_bench import BenchRequest, run_llama_bench
from profiler.report.build import build_report
from tests.support import real_llama_bench


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on=-pw 1", EngineArm("on", ("-pw", "1"))),
        ("off=", EngineArm("off", ())),
        ('ot=-ot "ffn_(up|down)=CPU"', EngineArm("ot", ("-ot", "ffn_(up|down)=CPU"))),
        (
            "env=GGML_OP_OFFLOAD_MIN_BATCH=64 -fa 1",
            EngineArm("env", ("-fa", "1"), (("GGML_OP_OFFLOAD_MIN_BATCH", "64"),)),
        ),
        ("v=A=b=c", EngineArm("v", (), (("A", "b=c"),))),
        (r"n=-ot blk\.\d+\.ffn=CPU", EngineArm("n", ("-ot", r"blk\.\d+\.ffn=CPU"))),
        (r'q=-ot "blk\.(1|2)\.=CPU" # -fa 1', EngineArm("q", ("-ot", r"blk\.(1|2)\.=CPU", "#", "-fa", "1"))),
    ],
)
def test_words_are_flags_or_variables(text: str, expected: EngineArm) -> None:
    assert parse_arm(text) == expected


def test_an_arm_is_spelled_as_it_is_typed() -> None:
    assert parse_arm("x=A=1 -ot 'a|b=CPU'").spelled == "A=1 -ot 'a|b=CPU'"


@pytest.mark.parametrize(
    ("common", "own", "left"),
    [
        ("-m a.gguf -pw 0 -fa 1", "-pw 1", "-m a.gguf -fa 1"),
        ("--n-gpu-layers -1 -ub 512 -ub 1024 --progress", "-ngl 99 -ub 64", "--progress"),
        ("--progress -p 512", "--progress", "-p 512"),  # it takes no value
        ("-nopo 0 -ot x=CPU", "--no-op-offload 1", "-ot x=CPU"),
        ("-m a.gguf -p 512", "", "-m a.gguf -p 512"),
    ],
)
def test_what_an_arm_sets_goes_to_it_once(common: str, own: str, left: str) -> None:
    """llama-bench runs every value that it is given, so an arm would run the others' setting too."""
    assert without_overridden(tuple(common.split()), tuple(own.split())) == tuple(left.split())


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (("on",), "not NAME=FLAGS"),
        (("=-pw 1",), "not NAME"),
        (("a='x",), "quote"),
        (("a=", "a=-x"), "twice"),
        (("a=-fa 1 -ts 3,1",), "-ts 3,1 is llama-server's spelling.*write -ts 3/1"),
    ],
)
def test_anything_else_is_one_sentence(texts: tuple[str, ...], said: str) -> None:
    with pytest.raises(HprofError, match=said):
        parse_arms(texts)


def test_several_splits_in_llama_benchs_own_spelling_are_its_business() -> None:
    assert parse_arm("a=-ts 3/1,1/1").words == ("-ts", "3/1,1/1")


_FLAGS = ("-m", "fake.gguf", "-p", "128,256", "-n", "8", "-r", "3")
_ARMS = parse_arms(("off=-pw 0", "on=-pw 1"))


@pytest.fixture
def binary(tmp_path: Path) -> str:
    """The stand-in, as an executable."""
    script = Path(__file__).with_name("fake_llama_bench.py")
    path = tmp_path / "llama-bench"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_each_repetition_of_each_boot_is_a_pass_and_two_boots_are_no_verdict(
    tmp_path: Path, binary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("FAKE_LOG", str(log))
    result = run_llama_bench(BenchRequest(binary, _ARMS, _FLAGS, boots=2), tmp_path / "out")
    capture = Capture.open(result.capture)
    passes = capture.passes
    assert log.read_text().split() == ["pw=0", "env=", "pw=1", "env=", "pw=1", "env=", "pw=0", "env="]
    assert len(passes) == 2 * 2 * 3 * 3  # boots, arms, tests, repetitions
    assert passes["pass_id"].tolist() == list(range(36))
    assert passes.groupby(["arm", "n_prompt", "boot"]).size().eq(3).all()
    assert passes["t_start"].is_monotonic_increasing
    manifest = capture.manifest
    assert (manifest.state, manifest.source) == ("complete", "llama-bench")
    assert [(arm.name, arm.requested, arm.options["flags"]) for arm in manifest.arms] == [
        ("off", "-pw 0", ["-pw", "0"]), ("on", "-pw 1", ["-pw", "1"]),
    ]  # fmt: skip
    assert manifest.extra["engine"]["version"] == "version: 4242 (0a1b2c3)"
    assert len(manifest.extra["engine"]["sha256"]) == 64
    assert manifest.extra["llama_bench"]["build_number"] == 4242
    cell = next(cell for cell in build_report(capture).cells if cell.n_prompt == 256)
    found = cell.against_baseline["on"]["prefill_tokens_per_s"]
    assert found is not None
    assert (found.pairs, found.verdict, found.reason) == (2, "inconclusive", "2 of the 6 boots that a verdict needs")
    assert found.ratio == pytest.approx(1 / 0.7, rel=0.01)


def test_six_boots_are_enough_for_a_verdict_and_one_is_not(tmp_path: Path, binary: str) -> None:
    flags = ("-m", "fake.gguf", "-p", "128", "-n", "8", "-r", "1")
    found = []
    for boots in (6, 1):
        request = BenchRequest(binary, _ARMS, (*flags[:-1], "12") if boots == 1 else flags, boots=boots)
        capture = Capture.open(run_llama_bench(request, tmp_path / f"out-{boots}").capture)
        cell = next(cell for cell in build_report(capture).cells if cell.n_prompt)
        found.append(cell.against_baseline["on"]["prefill_tokens_per_s"])
        rate = cell.arms["on"].figures["pass"]["prefill_tokens_per_s"]
        assert rate is not None
        assert (rate.n, rate.low is None) == ((12, True) if boots == 1 else (6, False))
    assert found[0] is not None
    assert found[1] is not None
    assert (found[0].pairs, found[0].verdict) == (6, "faster")
    assert (found[1].verdict, found[1].reason) == ("inconclusive", "one process an arm: boots needed")


def test_arms_may_be_environment_variables(tmp_path: Path, binary: str) -> None:
    arms = parse_arms(("slow=GGML_TEST=slow", "fast=GGML_TEST=fast"))
    capture = Capture.open(run_llama_bench(BenchRequest(binary, arms, _FLAGS), tmp_path / "out").capture)
    by_arm = capture.passes.query("n_prompt == 128").groupby("arm")["prefill_ns"].min()
    assert by_arm["fast"] < by_arm["slow"]
    assert capture.manifest.arms[0].options["environment"] == {"GGML_TEST": "slow"}
    assert not any("take effect" in text for text in capture.manifest.warnings)


def test_flags_that_change_nothing_are_doubted(tmp_path: Path, binary: str) -> None:
    arms = parse_arms(("a=-fa 0", "b=-fa 1"))
    warnings = Capture.open(run_llama_bench(BenchRequest(binary, arms, _FLAGS), tmp_path / "out").capture).warnings
    assert any("a and b name the same settings" in text for text in warnings)
    assert any(text.startswith("One boot") for text in warnings)


def test_a_flag_of_an_arm_takes_the_place_of_the_one_for_all(tmp_path: Path, binary: str) -> None:
    """llama-bench would measure both: a list that is given twice grows."""
    arms = parse_arms(("small=--ubatch-size 64", "large=-ub 512 -fa 1"))
    capture = Capture.open(
        run_llama_bench(
            BenchRequest(binary, arms, ("-m", "x", "-ub", "32", "-p", "64"), boots=2), tmp_path / "out"
        ).capture
    )
    assert {tuple(pair) for pair in capture.passes[["arm", "n_ubatch"]].values.tolist()} == {
        ("small", 64),
        ("large", 512),
    }
    [said] = [text for text in capture.warnings if "share no cell" in text]
    assert f"hprof compare {tmp_path / 'out'}#small {tmp_path / 'out'}#large" in said
    compared = compare_captures(f"{tmp_path / 'out'}#small", f"{tmp_path / 'out'}#large")
    assert {change.arm_a for change in compared.changes} == {"small"}


def test_settings_swept_inside_an_arm_stand_apart(tmp_path: Path, binary: str) -> None:
    capture = Capture.open(run_llama_bench(BenchRequest(binary, _ARMS, _FLAGS), tmp_path / "out").capture)
    assert set(capture.passes["arm"]) == {"off", "on"}


@pytest.mark.parametrize(
    ("variables", "said", "n_passes"),
    [
        ({"FAKE_OLD": "1"}, "does not take '-pw'", 0),
        ({"FAKE_CRASH": "0"}, "signal SIGSEGV", 0),
        ({"FAKE_CRASH": "2"}, "signal SIGSEGV", 6),
    ],
)
def test_a_failure_is_one_sentence_and_loses_no_row(
    tmp_path: Path, binary: str, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str, n_passes: int
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(HprofError, match=rf"arm off \(-pw 0\): .*{said}"):
        run_llama_bench(BenchRequest(binary, _ARMS, _FLAGS), tmp_path / "out")
    if n_passes == 0:  # the same command, mended, needs no --force
        assert not (tmp_path / "out").exists()
        return
    capture = Capture.open(tmp_path / "out")
    assert capture.manifest.state == "interrupted"
    assert len(capture.passes) == n_passes


def _refused(tmp_path: Path, binary: str, arm: str) -> str:
    with pytest.raises(HprofError) as refused:
        run_llama_bench(BenchRequest(binary, parse_arms((arm,)), _FLAGS), tmp_path / "out")
    assert not (tmp_path / "out").exists(), "a failed run leaves no folder"
    return str(refused.value)


def test_an_override_that_is_rejected_fails_the_arm_though_the_program_ends_well(tmp_path: Path, binary: str) -> None:
    said = _refused(tmp_path, binary, r"a=-ot blk\.1=GPU7")
    assert "it does not take the override (error: unrecognized buffer type 'GPU7')" in said


def test_a_bad_value_is_not_an_unknown_flag(tmp_path: Path, binary: str) -> None:
    assert "it takes -ngl, but not the value 'many'" in _refused(tmp_path, binary, "a=-ngl many")


def test_a_run_that_fails_keeps_the_capture_that_it_was_to_replace(
    tmp_path: Path, binary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    run_llama_bench(BenchRequest(binary, _ARMS, _FLAGS), out)
    monkeypatch.setenv("FAKE_CRASH", "0")
    for _ in range(2):
        with pytest.raises(HprofError, match="SIGSEGV"):
            run_llama_bench(BenchRequest(binary, _ARMS, _FLAGS), out, force=True)
    assert len(Capture.open(out).passes) == 18
    monkeypatch.delenv("FAKE_CRASH")
    run_llama_bench(BenchRequest(binary, _ARMS, _FLAGS), out, force=True)
    assert Capture.open(out).manifest.state == "complete"


def test_two_builds_take_turns_and_the_report_names_their_commits(tmp_path: Path, binary: str) -> None:
    other = tmp_path / "other"
    other.write_text(f'#!/bin/sh\nFAKE_COMMIT=feed123 exec "{binary}" "$@"\n')
    other.chmod(0o755)
    request = BenchRequest(binary, parse_arms(("build=",)), _FLAGS, boots=2, other_binaries=(str(other),))
    capture = Capture.open(run_llama_bench(request, tmp_path / "out").capture)
    assert [arm.name for arm in capture.manifest.arms] == ["build=0a1b2c3", "build=feed123"]
    firsts = capture.passes.drop_duplicates(["arm", "boot"])[["arm", "boot"]].values.tolist()
    assert firsts == [["build=0a1b2c3", 0], ["build=feed123", 0], ["build=feed123", 1], ["build=0a1b2c3", 1]]
    assert [build["commit"] for build in capture.manifest.extra["engine"]["builds"]] == ["0a1b2c3", "feed123"]
    sides = [f"{tmp_path / 'out'}#build={commit}" for commit in ("0a1b2c3", "feed123")]
    assert main(["compare", *sides, "--fail-on", "decode<-5%", "--allow-inconclusive"]) == 0, "the same speed"
    assert (
        "llama-bench builds: build=0a1b2c3: 0a1b2c3 (4242); build=feed123: feed123 (4242)."
        in build_report(capture).engine
    )


def test_a_report_tells_placement_and_build(tmp_path: Path, binary: str) -> None:
    flags = (*_FLAGS, "-ngl", "99")
    capture = Capture.open(run_llama_bench(BenchRequest(binary, _ARMS, flags), tmp_path / "out").capture)
    lines = build_report(capture).engine
    assert "llama-bench build: 0a1b2c3 (4242)." in lines
    assert "Placement as asked for: -lm none." in lines
    said = " ".join(capture.manifest.cannot_say)
    assert "environment variables" not in said, "the manifest has them"
    assert "operating system" not in said


def test_progress_tells_what_is_left(tmp_path: Path, binary: str) -> None:
    told: list[str] = []
    run_llama_bench(BenchRequest(binary, _ARMS, _FLAGS, boots=2), tmp_path / "out", say=told.append)
    assert told[0] == "off: -pw 0 (process 1 of 4, boot 1 of 2)"
    assert re.fullmatch(r"off: -pw 0 \(process 4 of 4, boot 2 of 2, \d+ (s|min) left\)", told[3])


def test_a_program_that_hangs_is_ended(tmp_path: Path, binary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_HANG", "1")
    with pytest.raises(HprofError, match=r"not done after 0\.5 s.*--timeout"):
        run_llama_bench(BenchRequest(binary, _ARMS, _FLAGS, timeout_s=0.5), tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"binary": "/nowhere/llama-bench"}, "no program that can be run"),
        ({"arms": ()}, "no arm to run"),
        ({"flags": ("-o", "md")}, "-o is hprof's to set"),
        ({"nsys": True}, "nsys is not on PATH"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_written(
    tmp_path: Path, binary: str, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], said: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    fields: dict[str, object] = {"binary": binary, "arms": _ARMS, "flags": _FLAGS} | changes
    with pytest.raises(HprofError, match=said):
        run_llama_bench(BenchRequest(**fields), tmp_path / "out")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def _fake_nsys(folder: Path) -> None:
    """An nsys that runs the program and `exports` a real-looking SQLite file in place of a report."""
    path = folder / "nsys"
    path.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, shutil, sqlite3, subprocess, sys\n"
        "a = sys.argv[1:]\n"
        "if a[0] == 'export':\n"
        "    db = sqlite3.connect(a[a.index('--output') + 1])\n"
        "    db.execute('create table StringIds (id integer, value text)')\n"
        "    db.execute(\"insert into StringIds values (1, 'gemm')\")\n"
        "    db.execute('create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, deviceId integer, '\n"
        "        'contextId integer, streamId integer, correlationId integer, globalPid integer, shortName integer)')\n"
        "    db.execute('insert into CUPTI_ACTIVITY_KIND_KERNEL values (10, 50, 0, 1, 7, 1, 281761330233344, 1)')\n"
        "    db.commit()\n"
        "else:\n"
        "    at = a.index('-o')\n"
        "    pathlib.Path(a[at + 1]).write_text('report')\n"
        "    sys.exit(subprocess.run(a[at + 2:]).returncode)\n"
    )
    path.chmod(0o755)


def test_nsys_traces_become_a_capture_of_their_own(
    tmp_path: Path, binary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_nsys(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    result = run_llama_bench(BenchRequest(binary, _ARMS, _FLAGS, nsys=True), tmp_path / "out")
    assert result.traces == str(tmp_path / "out-nsys")
    traces = Capture.open(result.traces)
    assert traces.manifest.source == "nsys"
    assert traces.passes["arm"].tolist() == ["off", "on"]
    assert traces.table("events").num_rows == 2
    assert len(Capture.open(result.capture).passes) == 18


def test_the_command_line_gives_llama_bench_its_own_options(
    tmp_path: Path, binary: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    engine = ["run", "--engine", "llama-bench", "--bin", binary, "-m", "x.gguf", "-o", out]
    sizes = ["-p", "128", "-n", "8", "-ub", "64", "-r", "2", "--boots", "3"]
    assert main([*engine, *sizes, "-ot", "ffn=CPU", "--arm", "off=-pw 0", "--arm", "on=-pw 1"]) == 0
    assert f"hprof report {out} --all" in " ".join(capsys.readouterr().out.split())
    capture = Capture.open(out)
    assert capture.manifest.extra["engine"]["flags"] == [
        "-m", "x.gguf", "-p", "128", "-n", "8", "-d", "0", "-r", "2", "-ub", "64", "-ot", "ffn=CPU",
    ]  # fmt: skip
    assert len(capture.passes) == 2 * 3 * 2 * 2
    assert main([*engine, "--force", "--slots", "3"]) == 2
    assert "--slots is not for" in capsys.readouterr().err
    assert main(["run", "--engine", "llama-bench", "-m", "x.gguf"]) == 2
    assert "needs --bin" in capsys.readouterr().err


def test_a_real_llama_bench(tmp_path: Path) -> None:
    real, model = real_llama_bench()
    arms = parse_arms(("small=-ub 32", "large=-ub 64"))
    request = BenchRequest(real, arms, ("-m", model, "-p", "64", "-n", "4", "-r", "2"), boots=1)
    capture = Capture.open(run_llama_bench(request, tmp_path / "out").capture)
    assert len(capture.passes) == 2 * 2 * 2
    assert set(capture.passes["n_ubatch"]) == {32, 64}
    with pytest.raises(HprofError, match="does not take '--no-such-flag'"):
        run_llama_bench(BenchRequest(real, parse_arms(("x=--no-such-flag 1",)), ("-m", model)), tmp_path / "bad")


def test_flags_for_all_arms_reach_the_program(tmp_path: Path, binary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = tmp_path / "words"
    monkeypatch.setenv("FAKE_WORDS", str(words))
    given = ["-b", "1024", "-sm", "row", "-ts", "3/1", "-ctk", "q8_0", "-ctv", "f16", "-lm", "mlock", "-t", "2"]
    command = ["run", "--engine", "llama-bench", "--bin", binary, "-m", "x.gguf", "-p", "64", *given]
    assert main([*command, "--arm", r"a=-ot blk\.\d+=CPU", "-o", str(tmp_path / "out"), "--json"]) == 0
    told = words.read_text().split("\n")
    assert all(told[told.index(flag) + 1] == value for flag, value in zip(given[::2], given[1::2], strict=True))
    assert told[told.index("-ot") + 1] == r"blk\.\d+=CPU"
