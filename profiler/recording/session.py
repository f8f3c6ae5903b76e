"""One recording: a folder for spools, the variables that bring the library into processes, and their complaints."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from executor.errors import HprofError
from executor.files import bounded_read
from profiler.importers.cupti_spool.spool import SPOOL_ENDING
from profiler.recording.build import built_library
from profiler.recording.control import ControlPage
from profiler.recording.cupti_files import find_libraries

Graphs = Literal["auto", "graph", "node"]
WITHOUT: Final = ("calls", "waits", "memory")
DEFAULT_MAX_BYTES: Final = 512 << 20  # about 8 million records
_MAX_PROBLEM_BYTES: Final = 64 << 10
_MAX_PROBLEMS: Final = 100
_OTHERS: Final = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
_NO_LIBCUPTI: Final = (
    "hprof record needs libcupti of CUDA 12 or 13, and found none, in no CUDA toolkit and no wheel; install one with "
    "`pip install 'hprof[record]'`."
)


@dataclass(frozen=True, slots=True)
class RecordingSettings:
    """What to record of the processes."""

    graphs: Graphs = "auto"  # a record a launch of a CUDA graph, or one a node of it; auto: a launch
    max_bytes: int = DEFAULT_MAX_BYTES  # of all spools together
    after_s: float | None = None
    for_s: float | None = None
    only_range: str | None = None  # the name of an NVTX range: record inside it alone
    until_range: str | None = None  # stop for good where this range begins
    without: tuple[str, ...] = ()  # of WITHOUT: what is not asked for, as it costs time
    process: str | None = None  # an extended regular expression of POSIX, searched in a process's command line


class Recording:
    """A recording under way. Processes that get `environment` write into `folder` until `finish`."""

    def __init__(self, folder: Path, settings: RecordingSettings, library: Path, control: ControlPage) -> None:
        self.folder = folder
        self.control = control
        self._settings = settings
        self._library = library
        self._told: set[str] = set()

    @staticmethod
    def begin(settings: RecordingSettings, folder: Path | None = None) -> Recording:
        """Compile the library if need be, and make the folder (a temporary one, if none is given).

        Raises HprofError, with what to do, where something is missing.
        """
        check_pattern(settings.process)
        library = built_library()
        if not find_libraries():
            raise HprofError(_NO_LIBCUPTI)
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="hprof-", suffix=".spool"))
        else:
            try:
                folder.mkdir(parents=True, mode=0o700)
            except FileExistsError as error:
                raise HprofError(
                    f"{folder} holds what an earlier hprof record left behind; make a capture of it with `hprof import "
                    f"{folder}`, or remove it."
                ) from error
        control = ControlPage(folder, settings.max_bytes, settings.after_s, settings.for_s)
        return Recording(folder, settings, library, control)

    def environment(self, outside: Mapping[str, str]) -> dict[str, str]:
        """The variables to add to a program's environment. Raises HprofError where another tool has its own there."""
        for name in _OTHERS:
            if outside.get(name):
                raise HprofError(
                    f"another profiler is set up already: {name} is {outside[name]!r}, and CUPTI admits one; unset it, "
                    "or run without the other."
                )
        settings = self._settings
        return {
            "CUDA_INJECTION64_PATH": str(self._library),
            "NVTX_INJECTION64_PATH": str(self._library),
            "HPROF_SPOOL_FOLDER": str(self.folder.resolve()),
            "HPROF_SPOOL_LIBCUPTI": os.pathsep.join(str(path) for path in find_libraries()),
            "HPROF_SPOOL_GRAPHS": "node" if settings.graphs == "node" else "graph",
            "HPROF_SPOOL_WITHOUT": ",".join(settings.without),
            "HPROF_SPOOL_ONLY_RANGE": settings.only_range or "",
            "HPROF_SPOOL_UNTIL_RANGE": settings.until_range or "",
            "HPROF_SPOOL_PROCESS": settings.process or "",
        }

    def pause(self) -> None:
        """All processes stop recording, until `resume`."""
        self.control.pause(True)

    def resume(self) -> None:
        """All processes record again."""
        self.control.pause(False)

    def new_problems(self) -> list[str]:
        """Sentences of the recorded processes that were not given before."""
        files = sorted(self.folder.glob("problem-*-*"))[:_MAX_PROBLEMS]
        fresh = []
        for file in files:
            if file.suffix == ".new" or file.name in self._told:
                continue
            self._told.add(file.name)
            text = bounded_read(file, _MAX_PROBLEM_BYTES, "a sentence", "remove it").decode("utf-8", errors="replace")
            fresh.append(f"process {file.name.split('-')[1]}: {text}")
        return fresh

    def spools(self) -> list[Path]:
        """The spool files so far, one a process."""
        return sorted(self.folder.glob(f"*{SPOOL_ENDING}"))

    def processes(self) -> list[int]:
        """The processes that have a spool."""
        numbers = (file.name.partition("-")[0] for file in self.spools())
        return sorted({int(number) for number in numbers if number.isdigit()})

    def finish(self) -> None:
        """Processes that still run record no more."""
        self.control.finish()

    def remove(self) -> None:
        """Remove the folder, which a capture has been made of."""
        self.control.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def check_pattern(pattern: str | None) -> None:
    """Refuse a regular expression that the C library, which matches it, does not take."""
    if pattern is None:
        return
    extended, no_matches = 1, 8  # REG_EXTENDED, REG_NOSUB of glibc
    place = ctypes.create_string_buffer(1024)  # a regex_t, with room
    library = ctypes.CDLL(None)
    if library.regcomp(place, os.fsencode(pattern), extended | no_matches) != 0:
        raise HprofError(f"--process {pattern!r} is no extended regular expression; write one as grep -E takes it.")
    library.regfree(place)
