"""The command as a user types it: what is passed on, what is said, and what is left where hprof itself is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import hprof
from executor.errors import HprofError
from executor.units import parse_bytes
from profiler.capture import Capture
from profiler.cli.record import command
from profiler.recording.session import DEFAULT_MAX_BYTES, Recording, RecordingSettings
from tests.profiler.recording.standin import PROGRAM
from tests.support import ROOT

Hprof = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def words(standins: dict[int, Path], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stand-in program, to which lines of a script are added; hprof finds the stand-in for libcupti."""
    standin = standins[max(standins)]
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("HPROF_LIBCUPTI", str(standin))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return [sys.executable, str(PROGRAM), str(standin)]


def record(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hprof", "record", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)


def test_what_is_passed_on(words: list[str]) -> None:
    script = ["copy(1, 2, 3, 1000, 1, 2); kernel('k', 3, 4)", "print(input(), os.environ['NAME']); sys.exit(7)"]
    done = record("-o", "traces/mine", "--env", "NAME=value", "--", *words, *script, text="said\n")
    assert (done.returncode, done.stdout) == (7, "said value\n"), done.stderr
    assert "Wrote" in done.stderr
    assert "Process " in done.stderr, "and what was seen of it"
    capture = Capture.open("traces/mine")
    assert capture.manifest.source == "cupti"
    assert capture.manifest.state == "complete"
    assert sorted(path.name for path in Path("traces").iterdir()) == ["mine"], "no spool stays"
    (device,) = hprof.open("traces/mine").report().to_json()["devices"]
    assert device["copies"]["h2d"]["bytes"] == 1000


def test_the_limit_is_the_same_from_python() -> None:
    (option,) = (parameter for parameter in command.params if parameter.name == "max_bytes")
    assert parse_bytes(str(option.default), "--max-bytes") == DEFAULT_MAX_BYTES


def test_options_become_what_is_recorded(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its test where it is carried out; here that the command hands it on."""
    given: list[RecordingSettings] = []

    def begin(settings: RecordingSettings, folder: Path | None = None) -> Recording:
        given.append(settings)
        raise HprofError("enough")

    monkeypatch.setattr(Recording, "begin", begin)
    options = "--graphs node --after 3 --for 2.5 --only-range a --until-range b --max-bytes 3MiB --process llama"
    both = "--without calls --without waits"
    assert hprof.main(["record", "-o", "mine", *options.split(), *both.split(), "--", *words]) == 2
    assert given == [
        RecordingSettings(
            graphs="node",
            max_bytes=3 << 20,
            after_s=3,
            for_s=2.5,
            only_range="a",
            until_range="b",
            without=("calls", "waits"),
            process="llama",
        )
    ]


def test_a_signal_becomes_the_shells_code(words: list[str]) -> None:
    done = record("-o", "mine", "--", *words, "os.kill(os.getpid(), 11)")
    assert done.returncode == 128 + signal.SIGSEGV
    assert Path("mine/manifest.json").is_file()


def test_json_is_alone_on_stdout_after_the_programs_output(words: list[str]) -> None:
    done = record("-o", "mine", "--json", "--", *words, "kernel('k', 1, 2)")
    assert done.stdout.startswith('{\n  "schema": 1')


def test_nothing_to_record(words: list[str]) -> None:
    done = record("-o", "mine", "--", "sh", "-c", "echo said; exit 3")
    assert (done.returncode, done.stdout) == (3, "said\n")
    assert "no process started CUDA or used NVTX" in done.stderr
    assert "without one `hprof run --engine command` times programs, and hprof.ab and hprof.record" in done.stderr
    assert "`hprof doctor` says" in done.stderr, "the next step"
    assert not Path("mine").exists()
    assert not Path("mine.spool").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "taken", "--", "true"], "already holds a capture"),
        (["--", "no-such-program"], "no-such-program is no program that can be run"),
        (["--env", "NAME", "--", "true"], "'NAME' is not K=V"),
        (["--max-bytes", "1X", "--", "true"], "--max-bytes '1X' is not a size"),
        (["--process", "(", "--", "true"], "is no extended regular expression"),
        (["--only-range", " ", "--", "true"], "a range's name is not empty"),
        (["-o", "left", "--", "true"], "left.spool holds what an earlier hprof record left behind"),
        ([], "give a command after --"),
    ],
)
def test_what_is_refused_before_anything_runs(words: list[str], arguments: list[str], said: str) -> None:
    shutil.copytree(ROOT / "traces" / "example", "taken")
    Path("left.spool").mkdir()
    done = record(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_profiler_in_the_environment_is_said_at_once(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/nsys.so")
    done = record("-o", "mine", "--", *words, "print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert "another profiler is set up already" in done.stderr
    assert not Path("mine.spool").exists()


def test_a_problem_is_said_while_the_program_runs(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_TAKEN", "1")
    command = [sys.executable, "-m", "hprof", "record", "-o", "mine", "--", *words, "input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        assert "another profiler holds CUPTI" in process.stderr.readline()
        process.communicate("\n", timeout=60)
    assert process.returncode == 0


def test_hprof_killed_and_the_spool_imported(words: list[str]) -> None:
    """The program runs on and is recorded on; what hprof would have done at the end, `hprof import` does."""
    script = "print(os.getpid(), flush=True); kernel('k', 1, 2); input(); kernel('later', 3, 4)"
    command = [sys.executable, "-m", "hprof", "record", "-o", "mine", "--", *words, script]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        number = int(process.stdout.readline())
        process.kill()
        process.wait()
        process.stdin.write("\n")
        process.stdin.flush()
        wait_for_end(number)
    assert not Path("mine").exists()
    assert hprof.main(["import", "mine.spool", "-o", "mine"]) == 0
    names = Capture.open("mine").table("events", ["kind", "name"]).to_pylist()
    assert sorted(row["name"] for row in names if row["kind"] == "compute") == ["k", "later"]


def test_signals_pause_and_resume(words: list[str]) -> None:
    wait = "wait_for(lambda: {} is_enabled(10))"
    script = [
        "kernel('a', 1, 2); print('ready', flush=True)",
        wait.format("not") + "; kernel('b', 3, 4); print('paused', flush=True)",
        wait.format("") + "; kernel('c', 5, 6)",
    ]
    command = [sys.executable, "-m", "hprof", "record", "-o", "mine", "--", *words, *script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR2)
        assert process.stdout.readline() == "paused\n"
        process.send_signal(signal.SIGUSR1)
        assert process.wait(60) == 0
    names = Capture.open("mine").table("events", ["kind", "name"]).to_pylist()
    assert sorted(row["name"] for row in names if row["kind"] == "compute") == ["a", "c"]


def test_being_told_to_end_ends_the_program(words: list[str]) -> None:
    command = [sys.executable, "-m", "hprof", "record", "-o", "mine", "--", *words]
    script = "kernel('k', 1, 2); print('ready', flush=True); time.sleep(60)"
    with subprocess.Popen([*command, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert Capture.open("mine").manifest.state == "complete"


def wait_for_end(number: int) -> None:
    end = time.monotonic() + 30
    while Path(f"/proc/{number}").exists() and time.monotonic() < end:
        stat = Path(f"/proc/{number}/stat").read_text(encoding="utf-8")
        if stat.rpartition(")")[2].split()[0] == "Z":  # nobody buries it here
            return
        time.sleep(0.02)
    assert not Path(f"/proc/{number}").exists() or os.name != "posix"
