"""C++ that is compiled where it is first needed, and kept in the user's cache: hprof's wheel is pure Python.

A build is named after everything that went into it (sources, flags, compiler), so that none is ever stale.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executor.errors import HprofError
from executor.files import cache_folder
from executor.version import __version__

_TIMEOUT_S: Final = 300


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """A shared library: how it is made, and what messages call it."""

    name: str
    """Its file's name begins so."""
    what: str
    """As the subject of a sentence: "the recorder's library"."""
    sources: Path
    """The folder that holds all that is its own."""
    objects: Sequence[Sequence[str]]
    """What the compiler is given for each object file: flags and a source."""
    links: Sequence[Sequence[str]]
    """Arguments behind the object files, for linking; a later one is tried where those before it fail."""
    made_of: Sequence[str] = ()
    """Whatever else a build depends on."""
    remedy: str = "try another compiler with CXX=..."
    """What to do where it does not compile."""

    def built(self, compiler: str) -> Path:
        """The library, compiled now if need be (some seconds).

        Raises HprofError where compiling fails, or the cache cannot be written.
        """
        library = cache_folder() / f"{self.name}-{self._digest(compiler)}.so"
        if not library.is_file():
            self._build(compiler, library)
        return library

    def _digest(self, compiler: str) -> str:
        made_of = hashlib.sha256(__version__.encode())
        for file in sorted(path for path in self.sources.rglob("*") if path.is_file()):
            made_of.update(file.name.encode() + b"\0" + file.read_bytes())
        status = Path(compiler).stat()
        made_of.update(f"{compiler} {status.st_size} {status.st_mtime_ns}".encode())
        made_of.update(f"{self.objects} {self.links} {self.made_of}".encode())
        return made_of.hexdigest()[:16]

    def _build(self, compiler: str, library: Path) -> None:
        """Compile side by side, link, and rename into place: whoever builds the same at once makes the same."""
        try:
            library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder = tempfile.TemporaryDirectory(dir=library.parent, prefix=".build-")
        except OSError as error:
            raise HprofError(
                f"{library.parent} cannot be written ({error.strerror}), and {self.what} is kept there; set "
                "XDG_CACHE_HOME to a folder of yours."
            ) from error
        with folder as made:
            targets = [f"{made}/{number}.o" for number in range(len(self.objects))]
            jobs = zip(self.objects, targets, strict=True)
            self._run_all([[compiler, "-c", *arguments, "-o", target] for arguments, target in jobs])
            half = f"{made}/library.so"
            for number, link in enumerate(self.links, 1):
                try:
                    self._run_all([[compiler, *targets, "-o", half, *link]])
                    break
                except HprofError:
                    if number == len(self.links):
                        raise
            Path(half).replace(library)

    def _run_all(self, commands: Sequence[Sequence[str]]) -> None:
        nothing = subprocess.DEVNULL
        started = [
            subprocess.Popen(
                command, stdin=nothing, stdout=nothing, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            for command in commands
        ]
        try:
            for process in started:
                _, said = process.communicate(timeout=_TIMEOUT_S)
                if process.returncode != 0:
                    raise HprofError(self._does_not_compile(commands[0][0], said))
        except subprocess.TimeoutExpired as error:
            raise HprofError(self._does_not_compile(commands[0][0], f"error: no end within {_TIMEOUT_S} s")) from error
        finally:
            for process in started:
                if process.poll() is None:  # the compiler proper is a child of what was started
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()

    def _does_not_compile(self, compiler: str, said: str) -> str:
        lines = said.splitlines() or ["it does not say why"]
        reason = next((line for line in lines if "error" in line), lines[0])
        return f"{self.what} does not compile with {compiler} ({reason[:300].strip()}); {self.remedy}"


def find_compiler() -> str | None:
    """The C++ compiler: $CXX, else the first of the usual names."""
    names = [os.environ.get("CXX", ""), "g++", "c++", "clang++"]
    return next((found for name in names if name and (found := shutil.which(name)) is not None), None)
