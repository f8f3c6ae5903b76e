"""What Tab offers, asked as a shell asks it."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.profiler import makers
from tests.support import ROOT


def offered(words: str, cwd: Path) -> list[str]:
    """`hprof WORDS` and Tab, in bash: the values that are offered."""
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "_HPROF_COMPLETE": "bash_complete",
        "COMP_WORDS": f"hprof {words}",
        "COMP_CWORD": str(len(words.split()) - (0 if words.endswith(" ") is False else -1)),
    }
    done = subprocess.run([sys.executable, "-m", "hprof"], env=env, cwd=cwd, capture_output=True, text=True, check=True)
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def with_a_program(folder: Path) -> dict[str, str]:
    """The environment of a shell that finds a program `hprof`, made in the folder."""
    program = folder / "hprof"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hprof "$@"\n')
    program.chmod(0o755)
    return {"PYTHONPATH": str(ROOT), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


class Terminal:
    """A shell that somebody types at."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._seen = ""

    def type(self, keys: str, until: str) -> str:
        """What is shown from these keys on, up to where it matches; fails where that takes a minute."""
        os.write(self._fd, keys.encode())
        end, shown = time.monotonic() + 60, ""
        while not re.search(until, shown, re.DOTALL):
            assert time.monotonic() < end, (keys, shown)
            if select.select([self._fd], [], [], 1)[0]:
                shown += os.read(self._fd, 65536).decode(errors="replace")
        return shown


@contextmanager
def interactive_bash(cwd: Path, environment: dict[str, str]) -> Iterator[Terminal]:
    """bash on a terminal of its own, without anybody's start-up files."""
    settings = {"PS1": "READY> ", "TERM": "dumb", "INPUTRC": os.devnull, "HISTFILE": os.devnull, "COLUMNS": "200"}
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], os.environ | environment | settings)
    try:
        yield Terminal(fd)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(fd)
        os.waitpid(pid, 0)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_itself_lists_and_completes(tmp_path: Path) -> None:
    """What several names share is typed on the first Tab, and all are listed on the second, as bash does everywhere."""
    with interactive_bash(tmp_path, with_a_program(tmp_path)) as bash:
        bash.type("", "READY> $")
        bash.type('eval "$(_HPROF_COMPLETE=bash_source hprof)"\n', "\n.*READY> $")
        listed = bash.type("hprof run -m qwen3\t\t", r"qwen3-235b.*READY> ")
        assert {"qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3.5-27b"} <= set(listed.split())
        bash.type("\x15hprof run --arms off,cp\t", "off,cpu ")
        bash.type("\x15hprof run --arms=off,cp\t", "--arms=off,cpu ")
        bash.type("\x15bind 'set show-all-if-ambiguous on'\n", "on'.*READY> $")
        bash.type("hprof run -m qwen3\t", r"qwen3-235b.*READY> ")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_value_behind_an_equals_sign_keeps_its_option(shell: str, tmp_path: Path) -> None:
    """zsh and fish replace the whole word: an answer of `off,gated` alone would take `--arms=` away."""
    words = "hprof run --arms=off,ga"
    env = os.environ | with_a_program(tmp_path) | {"_HPROF_COMPLETE": f"{shell}_complete", "COMP_WORDS": words}
    env["COMP_CWORD"] = "2" if shell == "zsh" else words.split()[-1]
    done = subprocess.run(["hprof"], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "--arms=off,gated" in re.split(r"\n|plain,", done.stdout)


def test_commands_presets_arms_and_quants(tmp_path: Path) -> None:
    assert offered("rep", tmp_path) == ["report"]
    assert "qwen3-30b-a3b" in offered("run -m qwen", tmp_path)
    assert offered("run --arms off,gat", tmp_path)[:1] == ["off,gated"]
    assert offered("run --quant q4_k_m", tmp_path) == ["Q4_K_M"]


@pytest.mark.parametrize("words", ["report traces/", "compare traces/", "report tra"])
def test_captures_of_the_folder(words: str, tmp_path: Path) -> None:
    makers.empty(tmp_path / "traces" / "mine")
    (tmp_path / "traces" / "other").mkdir()
    for name in ("a;true", "$(touch owned)", "two\nlines", "it's"):  # a shell would run or split what it completed
        makers.empty(tmp_path / "traces" / name)
    assert [one for one in offered(words, tmp_path) if one.startswith("traces/") and one[7:]] == ["traces/mine"]
    assert "traces/mine" in offered(words, tmp_path)
    assert "traces/other" not in offered(words, tmp_path)


def test_fish_is_offered_comma_lists_whole() -> None:
    """fish runs what `fish_source` prints, which splits an answer at its first comma alone."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "_HPROF_COMPLETE": "fish_source"}
    done = subprocess.run([sys.executable, "-m", "hprof"], env=env, capture_output=True, text=True, check=True)
    assert 'string split -m 1 "," $completion' in done.stdout


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_itself_completes_a_comma_list(tmp_path: Path) -> None:
    env = os.environ | with_a_program(tmp_path)
    asked = "_HPROF_COMPLETE=fish_source hprof | source; complete -C 'hprof run --arms off,gat'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", asked], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "off,gated" in done.stdout.split()


def test_an_offer_is_of_one_kind(tmp_path: Path) -> None:
    """zsh takes away what was typed where names are offered beside its own files or folders."""
    makers.empty(tmp_path / "traces" / "mine")
    (tmp_path / "mine.gguf").touch()
    assert offered("run -m mi", tmp_path) == ["mixtral-8x7b", "mine.gguf"]
    assert offered("report traces/mi", tmp_path) == ["traces/mine"]
    assert offered("report traces/no", tmp_path) == ["traces/no"], "left to the shell's folders"
    assert offered("run -m ./x", tmp_path) == ["./x"], "left to the shell's files"


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_the_script() -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT), "_HPROF_COMPLETE": "zsh_source"}
    done = subprocess.run([sys.executable, "-m", "hprof"], env=env, capture_output=True, text=True, check=True)
    asked = f"autoload -Uz compinit; compinit -u -D; {done.stdout}\nprint ${{_comps[hprof]}}"
    found = subprocess.run(["zsh", "-f", "-c", asked], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "_hprof_completion"
