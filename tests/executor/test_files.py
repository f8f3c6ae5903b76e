"""A file is read up to a limit, and what has no end is not read at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from executor.errors import HprofError
from executor.files import bounded_read


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
