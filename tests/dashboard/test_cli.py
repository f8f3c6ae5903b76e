"""`hprof dashboard`: what it starts, where it listens, and what it says about that."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import hprof
from dashboard import cli
from dashboard.server import KnownNames, WithScript
from tests.dashboard.browser import unused_port, wait_until_up
from tests.support import ROOT


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda path, arguments, environment: calls.append((path, arguments, environment)))
    monkeypatch.setattr(os, "chdir", lambda _path: None)
    return calls


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(f"--{name}") + 1]


def test_starts_streamlit_on_loopback_without_telemetry(tmp_path: Path, started: list[Any]) -> None:
    result = CliRunner().invoke(cli.command, [str(tmp_path), "--no-browser", "--port", "9123"])
    assert result.exit_code == 0, result.output
    path, arguments, environment = started[0]
    assert path == sys.executable
    assert arguments[1:5] == ["-P", "-m", "dashboard.serve", "run"]
    assert option(arguments, "server.address") == "127.0.0.1"
    assert option(arguments, "server.port") == "9123"
    assert option(arguments, "server.headless") == "true"
    assert option(arguments, "browser.gatherUsageStats") == "false"
    assert option(arguments, "server.showEmailPrompt") == "false"
    assert arguments[-5:] == ["--", "--traces", str(tmp_path), "--allow-host", "127.0.0.1"]
    assert option(arguments, "server.enableXsrfProtection") == option(arguments, "server.enableCORS") == "true"
    assert str(Path(cli.__file__).parents[1]) in environment["PYTHONPATH"].split(os.pathsep)
    assert "without a password" not in result.stderr


def test_streamlit_offers_visitors_nothing_to_install(tmp_path: Path, started: list[Any]) -> None:
    """It does where it believes that a developer of the app looks at it, which opening a browser makes it believe."""
    for words, opens in ((["--no-browser"], False), ([], True)):
        started.clear()
        CliRunner().invoke(cli.command, [str(tmp_path), *words])
        arguments = started[0][1]
        assert option(arguments, "server.headless") == "true"
        assert (cli.OPENS_BROWSER in arguments[arguments.index("--") :]) == opens


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


def unknown_name(*_: object, **__: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.mark.parametrize("host", ["999", "no.such.host.invalid", "a" * 300, "1.2.3.4"])
def test_an_address_of_no_machine_is_one_sentence(
    tmp_path: Path, host: str, started: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if host.endswith(".invalid"):
        monkeypatch.setattr(socket, "getaddrinfo", unknown_name)  # a resolver may take its time to say so
    assert hprof.main(["dashboard", str(tmp_path), "--host", host]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"hprof: --host {host} --port ")
    assert error.count("\n") == 1
    assert started == []


def test_a_port_that_is_taken_is_one_sentence(
    tmp_path: Path, started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert hprof.main(["dashboard", str(tmp_path), "--port", port]) == 2
    assert "Address already in use; leave --port out" in capsys.readouterr().err
    assert started == []


def test_a_name_that_is_too_long_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hprof.main(["dashboard", str(tmp_path / ("x" * 400))]) == 2
    assert "is no folder" in capsys.readouterr().err


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await send("passed on")


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        ("localhost:8501", True),
        ("LOCALHOST", True),
        ("127.0.0.1:1", True),
        ("[::1]:8501", True),
        ("10.1.2.3", True),
        ("lab.example.", True),
        ("evil.example:8501", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_name_that_nobody_allowed_is_refused(host: str, passes: bool, kind: str) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def call() -> None:
        headers = [(b"host", host.encode())]
        await KnownNames(_app, ["lab.example"])({"type": kind, "headers": headers, "extensions": {}}, None, send)  # type: ignore[arg-type]

    asyncio.run(call())
    assert (sent == ["passed on"]) is passes
    if not passes:
        assert sent[0].get("status", 400) == 400


@pytest.mark.parametrize(
    ("kind", "body", "is_changed"),
    [
        (b"text/html; charset=utf-8", [b"<html><he", b"ad><title>"], True),
        (b"application/json", [b'{"<head>": 1}'], False),
    ],
)
def test_pages_get_the_script_first_and_nothing_else_does(
    tmp_path: Path, kind: bytes, body: list[bytes], is_changed: bool
) -> None:
    (tmp_path / "history.js").write_text("first()")
    sent: list[Any] = []

    async def page(scope: Any, receive: Any, send: Any) -> None:
        assert b"accept-encoding" not in dict(scope["headers"]), "what is packed could not be changed"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        for part in body:
            await send({"type": "http.response.body", "body": part, "more_body": part is not body[-1]})

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"accept", b"text/html"), (b"accept-encoding", b"gzip")]
    asyncio.run(WithScript(page, tmp_path / "history.js")({"type": "http", "headers": headers}, None, send))  # type: ignore[arg-type]
    told = b"".join(message.get("body", b"") for message in sent)
    assert told == (b"<html><head><script>first()</script><title>" if is_changed else b"".join(body))
    if is_changed:
        assert dict(sent[0]["headers"])[b"content-length"] == str(len(told)).encode()


def test_the_working_folder_decides_nothing(tmp_path: Path) -> None:
    """Its Streamlit settings would switch checks off, and a module there would be imported. Ctrl-C ends it with 130."""
    (tmp_path / ".streamlit").mkdir()
    settings = 'enableCORS=false\nenableXsrfProtection=false\ncorsAllowedOrigins=["http://evil.example"]'
    (tmp_path / ".streamlit" / "config.toml").write_text(f"[server]\n{settings}\n[theme]\nbase='dark'\n")
    (tmp_path / "pandas.py").write_text("raise SystemExit('a stranger')")
    (tmp_path / "traces").mkdir()
    port = unused_port()
    command = [sys.executable, "-P", "-m", "hprof", "dashboard", "--no-browser", "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    try:
        wait_until_up(f"http://127.0.0.1:{port}/_stcore/health", server)
        assert _status(port, "127.0.0.1") == 200
        assert _status(port, "evil.example") == 400
        assert _upgrade(port, f"http://127.0.0.1:{port}") == 101
        assert _upgrade(port, "http://evil.example") == 403
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 130
    finally:
        server.kill()
        server.wait(20)


def _status(port: int, host: str, more: dict[str, str] | None = None, path: str = "/") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Host": host} | (more or {}))
    return connection.getresponse().status


def _upgrade(port: int, origin: str) -> int:
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Origin": origin}
    return _status(port, f"127.0.0.1:{port}", headers | {"Sec-WebSocket-Key": "x" * 22 + "=="}, "/_stcore/stream")


def test_no_file_hides_a_package_that_streamlit_imports() -> None:
    """`streamlit run` puts this folder first on the path."""
    names = {path.stem for path in Path(cli.__file__).parent.glob("*.py")}
    names |= {path.name for path in Path(cli.__file__).parent.iterdir() if path.is_dir()}
    assert not names & (
        set(sys.stdlib_module_names) | {"executor", "profiler", "plotly", "pandas", "streamlit", "numpy"}
    )
