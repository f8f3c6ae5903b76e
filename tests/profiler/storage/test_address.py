"""Which addresses are opened, and what becomes of one that nobody answers at."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fsspec.implementations.http import HTTPFileSystem

import hprof
from executor.errors import HprofError
from profiler.capture import Capture
from profiler.storage import address
from profiler.storage.store import Store
from tests.profiler import makers


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/x",
        "zip://x.zip",
        "tar://x",
        "github://org:repo@main/x",
        "zip::http://127.0.0.1:1/x.zip",
        "simplecache::s3://bucket/x",
        "s3://bucket/x::zip://y",
        "filecache://x",
        "reference://",
        "data://x",
        "hf://x",
        "://x",
    ],
)
@pytest.mark.parametrize("command", ["report", "list", "dashboard"])
def test_other_schemes_are_refused_in_one_sentence(url: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hprof.main([command, url]) == 2
    error = capsys.readouterr().err
    assert "no way to read such an address" in error
    assert error.count("\n") == 1


def test_the_environment_adds_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(address.MORE_SCHEMES, "")
    with pytest.raises(HprofError, match="no way to read"):
        Store("memory://x")
    monkeypatch.setenv(address.MORE_SCHEMES, "ftp, memory")
    Store("memory://x")


def test_a_local_name_may_hold_what_chains_elsewhere(tmp_path: Path) -> None:
    assert len(makers.dense_off_on(tmp_path / "a::b", n_pairs=1).passes) == 4


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/run"


def test_an_address_that_does_not_answer_is_not_waited_for(
    silent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(address, "ANSWER_S", 1)
    HTTPFileSystem.clear_instance_cache()
    begun_s = time.monotonic()
    assert hprof.main(["report", silent]) == 2
    assert time.monotonic() - begun_s < 20
    assert capsys.readouterr().err == (
        f"hprof: cannot read {silent}/manifest.json: no answer within 1 s; check the address and its permissions.\n"
    )
    HTTPFileSystem.clear_instance_cache()


def test_an_address_at_which_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    assert hprof.main(["report", "http://127.0.0.1:1/run"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hprof: cannot read http://127.0.0.1:1/run/manifest.json: Cannot connect")
    assert error.count("\n") == 1


def test_a_web_server_tells_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    local = makers.dense_off_on(tmp_path / "run", n_pairs=1)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/run"
        assert Capture.open(url).manifest == local.manifest
        with pytest.raises(HprofError, match="does not exist"):
            Capture.open(f"{url}-none")
        server.shutdown()
