"""A file is read up to a limit, and what has no end is not read at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from executor.errors import HprofError
from executor.files import bounded_read, first_bytes


def test_a_file_of_the_limit_is_read_and_a_larger_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"x" * 1024)
    assert bounded_read(path, 1024, "a config", "name another") == b"x" * 1024
    with pytest.raises(
        HprofError, match=r"config\.json is larger than 1,023 B, too large for a config; name another\.$"
    ):
        bounded_read(path, 1023, "a config", "name another")


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(HprofError, match=r"absent cannot be read \(No such file or directory\); name another\.$"):
        bounded_read(tmp_path / "absent", 10, "a config", "name another")
    with pytest.raises(HprofError, match=r"cannot be read \(File name too long\); name another\.$"):
        bounded_read(tmp_path / ("x" * 300), 10, "a config", "name another")


def test_a_pipe_and_a_folder_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(HprofError, match="is not a regular file; name another"):
            bounded_read(path, 10, "a config", "name another")


def test_a_pipe_that_took_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    assert bounded_read(pipe, 10, "a config", "name another") == b""
    assert first_bytes(pipe, 10) == b""


def test_a_file_that_has_nothing_to_tell_yet_is_empty(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)  # somebody may write: reading would wait
    try:
        assert first_bytes(pipe, 10) == b""
    finally:
        os.close(writer)
