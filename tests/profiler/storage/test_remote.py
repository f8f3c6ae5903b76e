"""Captures in a bucket: written, listed, judged and gathered over S3's protocol, against a local server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import orjson
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import hprof
from executor.errors import HprofError
from profiler.capture import Capture, list_captures
from profiler.report.build import build_report
from tests.profiler import makers


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    server_module = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    server = server_module.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "test", "secret": "test", "endpoint_url": f"http://{host}:{port}"}
    monkeypatch.setitem(fsspec.config.conf, "s3", options)
    s3fs.S3FileSystem.clear_instance_cache()
    name = request.node.name.replace("_", "-")
    s3fs.S3FileSystem().mkdir(name)
    yield f"s3://{name}"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_a_run_in_a_bucket(bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local = makers.dense_off_on(tmp_path / "c", n_pairs=1)
    remote = makers.dense_off_on(f"{bucket}/run", n_pairs=1)
    assert remote.table("events").equals(local.table("events"))
    assert build_report(remote).to_json() | {"capture": 0, "created_utc": 0} == build_report(local).to_json() | {
        "capture": 0,
        "created_utc": 0,
    }
    assert len(fsspec.open(f"{bucket}/run").fs.ls(f"{bucket}/run/events")) == 1, "parts are gathered"
    assert [summary.name for summary in list_captures(bucket)] == ["run"]
    assert hprof.main(["report", f"{bucket}/run", "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out)["capture"] == f"{bucket}/run"


def test_unfinished_and_forced(bucket: str) -> None:
    makers.interrupted(f"{bucket}/run", n_pairs=2)
    assert len(Capture.open(f"{bucket}/run").passes) == 6
    with pytest.raises(HprofError, match="--force"):
        makers.dense_off_on(f"{bucket}/run")


def test_a_bucket_that_is_not_there(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hprof.main(["report", "s3://nowhere/run"]) == 2
    assert "s3://nowhere/run" in capsys.readouterr().err


class _NeedsCredentials(MemoryFileSystem):  # type: ignore[misc]
    """Fails as botocore does: with an exception that is no OSError."""

    protocol = "needs-credentials"

    def exists(self, path: str, **_: object) -> bool:
        raise LookupError("Unable to locate credentials\nand more")

    isdir = exists


def test_a_file_systems_own_errors_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    fsspec.register_implementation("needs-credentials", _NeedsCredentials, clobber=True)
    for command in ("report", "list"):
        assert hprof.main([command, "needs-credentials://run"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("hprof: cannot read needs-credentials://run")
        assert error.count("\n") == 1


@pytest.mark.parametrize("address", ["s3://", "s3:///"])
def test_an_address_of_no_bucket_is_refused(address: str) -> None:
    pytest.importorskip("s3fs")
    with pytest.raises(HprofError, match="names no bucket or folder"):
        Capture.open(address)
