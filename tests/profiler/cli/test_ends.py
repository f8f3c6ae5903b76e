"""How a command ends that an import or the memory fails under: one sentence and the shell's code, no traceback."""

from __future__ import annotations

import errno

import pytest

import hprof
from hprof import command_line
from profiler.running.termination import TerminatedError


def raised_by_cpp(interrupt: BaseException) -> ImportError:
    """What pybind11 makes of a signal that comes while C++ is imported."""
    error = ImportError("initialization failed")
    error.__cause__ = interrupt
    return error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (raised_by_cpp(KeyboardInterrupt()), 130, "interrupted"),
        (raised_by_cpp(TerminatedError()), 143, "terminated"),
        (TerminatedError(), 143, "terminated"),
        (MemoryError(), 2, "not enough memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 2, "not enough memory"),
        (RuntimeError("can't start new thread"), 2, "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"), 2, "not enough memory"),
        (ImportError("libtorch.so: failed to map segment from shared object"), 2, "not enough memory"),
    ],
)
def test_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(command_line.cli, "main", fail)
    assert hprof.main(["report"]) == code
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("kind", [ImportError, RuntimeError, OSError])
def test_what_fails_of_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    def fail(**_: object) -> None:
        raise kind("no such thing")

    monkeypatch.setattr(command_line.cli, "main", fail)
    with pytest.raises(kind, match="no such thing"):
        hprof.main(["report"])
