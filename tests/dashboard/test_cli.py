"""`hprof dashboard`: what it starts, where it listens, and what it says about that."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dashboard import cli


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda path, arguments, environment: calls.append((path, arguments, environment)))
    return calls


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(f"--{name}") + 1]


def test_starts_streamlit_on_loopback_without_telemetry(tmp_path: Path, started: list[Any]) -> None:
    result = CliRunner().invoke(cli.command, [str(tmp_path), "--no-browser", "--port", "9123"])
    assert result.exit_code == 0, result.output
    path, arguments, environment = started[0]
    assert path == sys.executable
    assert arguments[1:4] == ["-m", "streamlit", "run"]
    assert option(arguments, "server.address") == "127.0.0.1"
    assert option(arguments, "server.port") == "9123"
    assert option(arguments, "server.headless") == "true"
    assert option(arguments, "browser.gatherUsageStats") == "false"
    assert arguments[-3:] == ["--", "--traces", str(tmp_path)]
    assert str(Path(cli.__file__).parents[1]) in environment["PYTHONPATH"].split(os.pathsep)
    assert "without a password" not in result.stderr


def test_says_so_when_it_is_to_listen_elsewhere(tmp_path: Path, started: list[Any]) -> None:
    result = CliRunner().invoke(cli.command, [str(tmp_path), "--host", "0.0.0.0"])
    assert "listening on 0.0.0.0" in result.stderr
    assert "without a password" in result.stderr
    assert option(started[0][1], "server.address") == "0.0.0.0"


def test_refuses_a_folder_that_is_not_there(tmp_path: Path, started: list[Any]) -> None:
    result = CliRunner().invoke(cli.command, [str(tmp_path / "none")])
    assert "is no folder" in str(result.exception)
    assert started == []


def test_takes_the_next_port_when_one_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        assert cli.free_port("127.0.0.1", first) > first


def test_no_file_hides_a_package_that_streamlit_imports() -> None:
    """`streamlit run` puts this folder first on the path."""
    names = {path.stem for path in Path(cli.__file__).parent.glob("*.py")}
    names |= {path.name for path in Path(cli.__file__).parent.iterdir() if path.is_dir()}
    assert not names & (
        set(sys.stdlib_module_names) | {"executor", "profiler", "plotly", "pandas", "streamlit", "numpy"}
    )
