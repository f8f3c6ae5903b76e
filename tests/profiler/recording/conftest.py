"""The recorder's library and a stand-in for libcupti, compiled once a session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from executor.compiling import find_compiler
from profiler.importers import Imported, read_file
from profiler.recording.cupti_files import find_headers
from profiler.recording.session import Recording, RecordingSettings
from tests.profiler.recording.standin import PROGRAM, compiled_standin


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of this session, so that the library is compiled from what is there now."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def standins(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """For each CUDA whose headers are here the path of a stand-in for its libcupti."""
    compiler, headers = find_compiler(), find_headers()
    if compiler is None:
        pytest.skip("no C++ compiler")
    if not headers:
        pytest.skip("no headers of CUPTI: pip install 'hprof[record]'")
    folder = tmp_path_factory.mktemp("standin")
    return {one.cuda_major: compiled_standin(compiler, one, folder) for one in headers}


@dataclass
class Stage:
    """One recording, and programs that run in it."""

    recording: Recording
    standin: Path
    environment: dict[str, str]
    programs: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *script: str, cuda: bool = True, variables: Mapping[str, str] = {}) -> subprocess.Popen[str]:
        """Run the lines of a script in the stand-in program."""
        words = [sys.executable, str(PROGRAM), str(self.standin) if cuda else "-", *script]
        program = subprocess.Popen(
            words,
            env=self.environment | dict(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.programs.append(program)
        return program

    def run(self, *script: str, cuda: bool = True, code: int = 0, variables: Mapping[str, str] = {}) -> str:
        """The same to its end; what it printed."""
        program = self.start(*script, cuda=cuda, variables=variables)
        out, err = program.communicate(timeout=60)
        assert program.returncode == code, err
        assert err == ""
        return out

    def read(self) -> Imported:
        """What was recorded."""
        return read_file(self.recording.folder)


@pytest.fixture
def stage(
    standins: dict[int, Path], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Stage]]:
    """Begins a recording with these settings; `cuda` chooses among the CUPTIs that are here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    stages: list[Stage] = []

    def begin(cuda: int = 0, **settings: object) -> Stage:
        standin = standins[cuda or max(standins)]
        monkeypatch.setenv("HPROF_LIBCUPTI", str(standin))
        recording = Recording.begin(RecordingSettings(**settings), tmp_path / f"run-{len(stages)}.spool")  # type: ignore[arg-type]
        made = Stage(recording, standin, dict(os.environ) | recording.environment({}))
        stages.append(made)
        return made

    yield begin
    for made in stages:
        for program in made.programs:
            if program.poll() is None:
                program.kill()
            program.communicate()
        made.recording.remove()
