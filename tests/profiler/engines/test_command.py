"""`hprof run --engine command`: any commands as arms, in turn; failures in one sentence, and no process lost."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from executor.errors import HprofError
from hprof import main
from profiler.capture import Capture
from profiler.engines import process
from profiler.engines.command import CommandRequest, parse_commands, run_commands
from profiler.engines.process import run_program
from profiler.engines.readings import parse_rules
from profiler.report.answer import ANSWER_ROOMS, answer_blocks
from profiler.report.blocks import Lines
from profiler.report.build import build_report
from profiler.report.markdown import render_markdown
from profiler.report.report import Report


def printing(text: str, *, seconds: float = 0) -> str:
    """A command that takes so long and prints this."""
    return f"sh -c {shlex.quote(f'sleep {seconds}; echo {shlex.quote(text)}')}"


def test_words_are_split_as_a_shell_does_and_variables_stand_in_front() -> None:
    [arm] = parse_commands([r"on=A=1 b=2 sh -c 'x=3 y' C=3 a\ b"])
    assert arm.words == ("sh", "-c", "x=3 y", "C=3", "a b")
    assert arm.environment == (("A", "1"), ("b", "2"))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], "needs arms, such as --arm off="),
        (["on"], "is not NAME=COMMAND"),
        (["=ls"], "is not NAME=COMMAND"),
        (["on="], "names no program"),
        (["on=A=1"], "names no program"),
        (["a=sh 'x"], "a quote that does not end"),
        (["a=sh", "a=sh"], "gives the name 'a' twice"),
        (["a=sh | tee x"], r"'\|' is the shell's, and no shell runs the command"),
        (["a=sh >x"], "'>' is the shell's"),
        (["a=sh && sh"], "'&&' is the shell's"),
        (["a=no-such-program-here 1"], "no-such-program-here is no program that can be run"),
    ],
)
def test_what_is_no_command_is_told_in_one_sentence(texts: list[str], said: str) -> None:
    with pytest.raises(HprofError, match=said):
        parse_commands(texts)


def test_a_quoted_operator_is_a_word() -> None:
    assert parse_commands(["a=sh -c 'a | b'"])[0].words == ("sh", "-c", "a | b")


def test_processes_take_turns_and_each_is_a_pass(tmp_path: Path) -> None:
    log = tmp_path / "log"
    arms = parse_commands([f"{name}=LOG={log} sh -c 'echo {name} >> $LOG'" for name in ("off", "on")])
    said: list[str] = []
    capture = Capture.open(run_commands(CommandRequest(arms, boots=3), tmp_path / "out", say=said.append))
    assert log.read_text().split() == ["off", "on", "on", "off", "off", "on"]
    passes = capture.passes
    assert passes["arm"].tolist() == log.read_text().split()
    assert passes["boot"].tolist() == [0, 0, 1, 1, 2, 2]
    assert passes["n_prompt"].isna().all()
    assert (passes["t_start"].iloc[1:].to_numpy() >= passes["t_end"].iloc[:-1].to_numpy()).all()
    assert capture.manifest.source == "command"
    assert capture.manifest.arms[0].options["command"] == ["sh", "-c", "echo off >> $LOG"]
    assert len(said) == 6
    assert said[3].startswith("off: ")
    assert "process 4 of 6, boot 2 of 3" in said[3]


def test_six_boots_give_verdicts_of_wall_time_and_of_what_the_program_prints(tmp_path: Path) -> None:
    arms = parse_commands([f"off={printing('speed: 10 t/s', seconds=0.05)}", f"on={printing('speed: 20 t/s')}"])
    rules = parse_rules(["t/s=speed: ([0-9.]+)", "missing:lower=speed: (1.)"])
    with pytest.raises(HprofError, match=r"arm on: no line of what it printed matches --metric missing=speed: \(1.\)"):
        run_commands(CommandRequest(arms, 1, rules), tmp_path / "never")
    report = build_report(Capture.open(run_commands(CommandRequest(arms, 6, rules[:1]), tmp_path / "out")))
    [cell] = report.cells
    found = cell.against_baseline["on"]
    wall, speed = found["wall_ns"], found["t/s"]
    assert wall is not None
    assert speed is not None
    assert (wall.pairs, wall.ratio < 1) == (6, True), "how wide the interval is, a loaded machine decides"
    assert (speed.ratio, speed.verdict) == (2.0, "faster")
    assert cell.arms["on"].median("t/s") == 20
    assert "x as fast in wall time" in report.summary
    assert "2.00 x as fast in t/s" in report.summary
    first, second = answer_lines(report)
    assert first == "t/s: 20.0 with on, 10.0 with off: 2.00 x as fast, faster."
    assert "x as fast" in second, "how wide the interval is says which of two sentences it is"
    as_json = report.to_json()
    assert as_json["source"] == "command"
    assert as_json["cells"][0]["arms"]["off"]["readings"]["t/s"]["median"] == 10
    assert as_json["cells"][0]["arms"]["off"]["bytes_h2d"] is None
    assert as_json["cells"][0]["against_baseline"]["on"]["t/s"]["verdict"] == "faster"


def test_a_figure_that_a_later_process_does_not_print_is_null_and_said(tmp_path: Path) -> None:
    once = tmp_path / "once"
    command = f"sh -c 'test -e {once} || echo speed: 7; touch {once}'"
    request = CommandRequest(parse_commands([f"a={command}"]), 2, parse_rules(["t/s=speed: (.)"]))
    capture = Capture.open(run_commands(request, tmp_path / "out"))
    assert capture.table("passes")["readings"].to_pylist() == [
        [{"name": "t/s", "value": 7.0}],
        [{"name": "t/s", "value": None}],
    ]
    assert "1 process of a printed no t/s that is a number: it is unknown there." in capture.manifest.warnings


def test_a_figure_that_is_no_number_ends_the_first_boot_and_is_null_later(tmp_path: Path) -> None:
    once = tmp_path / "once"
    command = f"sh -c 'test -e {once} && echo speed: nan || echo speed: 7; touch {once}'"
    rules = parse_rules(["t/s=speed: (.*)"])
    capture = Capture.open(run_commands(CommandRequest(parse_commands([f"a={command}"]), 2, rules), tmp_path / "out"))
    assert [[one["value"] for one in row] for row in capture.table("passes")["readings"].to_pylist()] == [[7.0], [None]]
    assert capture.manifest.state == "complete"
    with pytest.raises(HprofError, match=r"arm a: --metric t/s=.* found 'nan', which is no number"):
        run_commands(CommandRequest(parse_commands([f"a={command}"]), 2, rules), tmp_path / "again")


def test_figures_of_zero_or_less_are_said_to_be_left_out(tmp_path: Path) -> None:
    arms = parse_commands([f"off={printing('gain: 0')}", f"on={printing('gain: 2')}"])
    request = CommandRequest(arms, 1, parse_rules(["gain:higher=gain: (.*)"]))
    report = build_report(Capture.open(run_commands(request, tmp_path / "out")))
    said = "gain is 0 or less in 1 of 2 passes, of which no ratio can be made."
    assert said in render_markdown(report)
    assert said in [line for block in answer_blocks(report, ANSWER_ROOMS[0]) for line in getattr(block, "lines", ())]


def answer_lines(report: Report) -> list[str]:
    """The first screen's answer, before its table."""
    blocks = [one for one in answer_blocks(report, ANSWER_ROOMS[0]) if isinstance(one, Lines) and one.kind == "answer"]
    return [line for block in blocks for line in block.lines]


def test_readings_of_a_strangers_manifest_are_taken_for_what_they_are(tmp_path: Path) -> None:
    out = Path(run_commands(CommandRequest(parse_commands([f"a={printing('x')}"])), tmp_path / "out"))
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["extra"]["readings"] = {"self": {"better": 7}, "wall_ns": {}, "b\x1b[2J": {"better": "lower"}, "c": []}
    (out / "manifest.json").write_text(json.dumps(manifest))
    [cell] = build_report(Capture.open(out)).cells
    assert {name: (figure.label, figure.better) for name, figure in cell.readings.items()} == {
        "self": ("self", None),
        "b\x1b[2J": ("b?[2J", "lower"),
    }
    assert cell.arms["a"].median("self") is None


def test_a_silent_process_is_not_given_last_words(tmp_path: Path) -> None:
    request = CommandRequest(parse_commands(["a=sh -c 'exit 4'"]), boots=1)
    with pytest.raises(HprofError, match=r"exit code 4, it printed nothing; run it by hand"):
        run_commands(request, tmp_path / "out")


def test_a_failing_process_is_one_sentence_and_those_before_it_stay(tmp_path: Path) -> None:
    good, bad = printing("fine"), "sh -c 'echo out; echo broke >&2; exit 3'"
    request = CommandRequest(parse_commands([f"a={good}", f"b={bad}"]), boots=2)
    with pytest.raises(HprofError, match=r"arm b \(sh -c .*\): exit code 3, its last words: 'broke'"):
        run_commands(request, tmp_path / "out")
    capture = Capture.open(tmp_path / "out")
    assert (capture.manifest.state, capture.passes["arm"].tolist()) == ("interrupted", ["a"])
    with pytest.raises(HprofError, match="exit code 3"):
        run_commands(CommandRequest(parse_commands([f"b={bad}"])), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_process_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    command = f"sh -c 'sleep 60 & echo $! > {child}; wait'"
    request = CommandRequest(parse_commands([f"a={command}"]), timeout_s=1)
    with pytest.raises(HprofError, match="not done after 1 s, so it was ended"):
        run_commands(request, tmp_path / "out")
    assert has_ended(int(child.read_text()))


def test_what_a_process_left_in_the_background_does_not_run_beside_the_next(tmp_path: Path) -> None:
    child = tmp_path / "child"
    done = run_program(["sh", "-c", f"sleep 60 & echo $! > {child}"], {}, 30)
    assert done.code == 0
    assert done.wall_ns < 30e9
    assert has_ended(int(child.read_text()))


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie that nobody waits for, within two seconds."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False


def test_output_without_end_is_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_OUTPUT_BYTES", 100_000)
    code = "import sys\nfor i in range(2_000): sys.stdout.write('x' * 999 + chr(10))\nprint('last')"
    done = run_program([sys.executable, "-c", code], {}, 30)
    assert len(done.output) == 100_000
    assert done.output.endswith("last\n")


def test_ctrl_c_ends_the_process_and_keeps_those_before_it(tmp_path: Path) -> None:
    child = tmp_path / "child"
    slow = f"sh -c 'echo $$ > {child}; sleep 60'"
    request = CommandRequest(parse_commands([f"a={printing('fine')}", f"b={slow}"]), boots=2)

    def interrupt() -> None:
        while not (child.exists() and child.read_text().strip()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_commands(request, tmp_path / "out")
    assert Capture.open(tmp_path / "out").manifest.state == "interrupted"
    assert has_ended(int(child.read_text()))


def test_the_command_line_runs_it_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arms = ["--arm", f"off={printing('speed: 1')}", "--arm", f"on={printing('speed: 2')}"]
    code = main(
        ["run", "--engine", "command", *arms, "--boots", "2", "--metric", "t/s=speed: (.)", "-o", str(out), "--json"]
    )
    assert code == 0
    printed = capsys.readouterr()
    [cell] = json.loads(printed.out)["cells"]
    assert cell["arms"]["on"]["readings"]["t/s"]["median"] == 2
    assert cell["against_baseline"]["on"]["wall_ns"]["reason"] == "2 of the 6 boots that a verdict needs"
    assert main(["compare", f"{out}#off", f"{out}#on"]) == 0
    assert main(["list", str(tmp_path)]) == 0


def test_one_arms_own_figure_is_on_the_first_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arm = f"now={printing('speed: 7')}"
    words = ["run", "--engine", "command", "--arm", arm, "--boots", "1", "--metric", "t/s=speed: (.)"]
    assert main([*words, "-o", str(tmp_path / "out")]) == 0
    assert "t/s: 7.00 with now." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "command"], "--engine command needs arms"),
        (["--engine", "command", "--arm", "a=sh", "-p", "5"], "-p is not for --engine command"),
        (["--engine", "command", "--arm", "a=sh", "--bin", "x"], "--bin is not for --engine command"),
        (["--metric", "t/s=x"], "--metric is for --engine command"),
        (["--arm", "a=sh"], "--arm is for --engine llama-bench or command"),
        (["--engine", "command", "--arm", "a=sh\x1b[2J-x"], "sh?[2J-x is no program"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments, "-o", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "out").exists()
