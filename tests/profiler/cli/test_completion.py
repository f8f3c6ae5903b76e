"""What Tab offers, asked as a shell asks it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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
    program = tmp_path / "hprof"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hprof "$@"\n')
    program.chmod(0o755)
    env = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
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
