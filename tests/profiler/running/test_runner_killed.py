"""Killed at any instant, a run leaves a capture that reads, with every finished pass; one that was ended says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hprof
from profiler.capture import Capture
from profiler.running.runner import InterruptedRunError, run_boots
from profiler.running.termination import terminable
from profiler.storage.writer import new_capture
from tests.support import ROOT

N_KILLS = 10
SEED = 11  # of the instants
PATIENCE_S = 240  # on a machine that has other things to do; pytest itself ends a test that hangs
RUN = ["run", "--device", "cpu", "--layers", "2", "-p", "64", "-n", "2", "-ub", "32", "-r", "1000", "--threads", "1"]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def test_sigkill_at_ten_instants(tmp_path: Path) -> None:
    script = [sys.executable, "-m", "tests.profiler.running.killed_runs"]
    arguments = [str(tmp_path), str(N_KILLS), str(SEED)]
    subprocess.run([*script, *arguments], cwd=ROOT, env=environment(), check=True, timeout=PATIENCE_S)
    for number in range(N_KILLS):
        log = tmp_path / f"{number}.log"
        n_finished = len(log.read_text().splitlines()) if log.exists() else 0
        capture = Capture.open(tmp_path / str(number))
        passes = capture.table("passes")
        assert n_finished <= passes.num_rows <= n_finished + 1
        assert capture.manifest.state in ("running", "complete")
        if capture.manifest.state == "running":
            assert any("killed" in warning for warning in capture.warnings)
        events = capture.table("events", ["pass_id"])
        assert set(events.column("pass_id").to_pylist()) == set(passes.column("pass_id").to_pylist())
        assert hprof.main(["report", str(tmp_path / str(number)), "--json"]) == 0


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("boots", ["1", "2"])
def test_an_ended_run_says_so(tmp_path: Path, number: signal.Signals, code: int, word: str, boots: str) -> None:
    path = tmp_path / "capture"
    command = [sys.executable, "-m", "hprof", *RUN, "--boots", boots, "-o", str(path)]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + PATIENCE_S
    while len(list(path.glob("passes/*pass-*.parquet"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, stderr
    assert stdout == ""
    assert stderr.count("\n") == 1
    assert stderr.startswith(f"hprof: {word}; ")
    capture = Capture.open(path)
    assert capture.manifest.state == "interrupted"
    is_warmup = capture.table("passes")["warmup"].to_pylist()
    n_warmups, n_measured = is_warmup.count(True), is_warmup.count(False)
    assert n_warmups + n_measured >= 3
    assert f"keeps {n_measured} measured pass{'es' * (n_measured != 1)} and {n_warmups} warm-up" in stderr


@pytest.mark.parametrize("thread", ["main", "another"])
def test_a_signal_waits_until_what_must_not_see_it_is_done(thread: str) -> None:
    """Whichever thread the system gives it to: Python's handlers run in the main one."""
    code = (
        "import os, signal, sys, threading\n"
        "from profiler.running.termination import TerminatedError, raised_afterwards, terminable\n"
        "is_asked = threading.Event()\n"
        "def send(): is_asked.wait(); signal.pthread_kill(threading.get_ident(), signal.SIGTERM)\n"
        "sender = threading.Thread(target=send); sender.start()\n"
        "try:\n"
        "    with terminable(), raised_afterwards():\n"
        "        if sys.argv[1] == 'main': os.kill(os.getpid(), signal.SIGTERM)\n"
        "        else: is_asked.set(); sender.join()\n"
        "        print('held')\n"
        "except TerminatedError: print('raised')\n"
        "finally:\n"
        "    if sys.argv[1] == 'main': signal.signal(signal.SIGTERM, signal.SIG_IGN); is_asked.set()\n"
    )
    command = [sys.executable, "-c", code, thread]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["held", "raised"]


def test_ctrl_c_waits_for_an_import_that_would_swallow_it(tmp_path: Path) -> None:
    (tmp_path / "swallowing.py").write_text(
        "import signal\n"
        "try: signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt: print('swallowed')\n"
        "whole = True\n"
    )
    code = (
        "import signal, sys, time; from profiler.running.termination import interrupted_between_imports\n"
        f"signal.signal(signal.SIGINT, signal.default_int_handler); sys.path.append({str(tmp_path)!r})\n"
        "try:\n"
        "    with interrupted_between_imports():\n"
        "        import swallowing; print('whole', swallowing.whole); time.sleep(60)\n"
        "except KeyboardInterrupt: print('raised')\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
        "print(signal.getitimer(signal.ITIMER_REAL)[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["whole", "True", "raised", "True", "0.0"]


def test_ctrl_c_comes_through_where_the_command_line_itself_is_called_by_an_import(tmp_path: Path) -> None:
    (tmp_path / "calling.py").write_text(
        "import signal; from profiler.running.termination import interrupted_between_imports\n"
        "try:\n"
        "    with interrupted_between_imports(): signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt: print('raised')\n"
    )
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.path.append({str(tmp_path)!r}); import calling"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["raised"]


def test_an_order_to_end_that_comes_while_a_process_of_boots_starts_ends_that_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class OrderedToEnd(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **options: Any) -> None:
            super().__init__(command, **options)
            started.append(self)
            os.kill(os.getpid(), signal.SIGTERM)

    writer = new_capture(tmp_path / "c")
    monkeypatch.setattr(subprocess, "Popen", OrderedToEnd)
    try:
        with terminable(), pytest.raises(InterruptedRunError, match="terminated"):
            run_boots(writer, RUN[1:], 1)
        assert [process.poll() in (143, -signal.SIGTERM) for process in started] == [True]
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_one_order_to_end_that_comes_twice_is_one() -> None:
    code = (
        "import os, signal; from profiler.running.termination import terminable\n"
        "with terminable():\n"
        "    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):\n"
        "        try: os.kill(os.getpid(), number); print('goes on')\n"
        "        except KeyboardInterrupt as error: print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["KeyboardInterrupt", "goes on", "goes on"]


def test_a_device_left_open_ends_with_the_process() -> None:
    """Its threads are inside torch then, and would be unwound through C++: exit code -6."""
    code = (
        "import torch; from executor.devices.cpu import CpuDevice; from executor.devices.base import Work\n"
        "device = CpuDevice(n_threads=1); matrix = torch.ones(300, 300)\n"
        "for _ in range(10_000): device._workers['compute'].submit(lambda: matrix @ matrix)\n"
        "device.wait('copy', device.event())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
