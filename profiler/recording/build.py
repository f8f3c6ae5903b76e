"""Compiles the recorder's library where it is first needed, and keeps it in the user's cache.

The wheel of hprof is pure Python: the library needs the headers of the CUPTI that the machine has, and a C++ compiler.
A build is named after everything that went into it (sources, headers, compiler), so that none is ever stale.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from executor.errors import HprofError
from executor.version import __version__
from profiler.recording.cupti_files import CuptiHeaders, find_headers

NATIVE: Final = Path(__file__).parent / "native"
_COMMON: Final = ("spool.cpp", "recorder.cpp", "cupti.cpp", "nvtx.cpp")
_PER_HEADERS: Final = "cupti_session.cpp"
_FLAGS: Final = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread")
# libstdc++ inside: the recorded program may have loaded an older one. Exported is what exports.map names, alone.
_LINK: Final = ("-shared", "-pthread", f"-Wl,--version-script={NATIVE / 'exports.map'}")
_STATIC: Final = ("-static-libstdc++", "-static-libgcc")
_RECORDS: Final = {
    "HPROF_KERNEL": "Kernel",
    "HPROF_MEMCPY": "Memcpy",
    "HPROF_MEMCPY_PTOP": "MemcpyPtoP",
    "HPROF_MEMSET": "Memset",
    "HPROF_GRAPH_TRACE": "GraphTrace",
    "HPROF_SYNCHRONIZATION": "Synchronization",
    "HPROF_MEMORY": "Memory",
    "HPROF_DEVICE": "Device",
    "HPROF_CONTEXT": "Context",
}
_TIMEOUT_S: Final = 300
_NO_COMPILER: Final = (
    "hprof record compiles its library once, and found no C++ compiler ($CXX, g++, c++, clang++); install one, such as "
    "with `apt install g++`."
)
_NO_HEADERS: Final = (
    "hprof record compiles its library once, and found no headers of CUPTI 12 or 13, in no CUDA toolkit and no wheel; "
    "install them with `pip install 'hprof[record]'`."
)


def built_library() -> Path:
    """The library for every CUPTI whose headers are here, compiled now if need be (some seconds).

    Raises HprofError, with what to install, where there is no compiler or no headers, and where compiling fails.
    """
    compiler, headers = find_compiler(), find_headers()
    if compiler is None:
        raise HprofError(_NO_COMPILER)
    if not headers:
        raise HprofError(_NO_HEADERS)
    library = cache_folder() / f"hprof-record-{_digest(compiler, headers)}.so"
    if not library.is_file():
        _build(compiler, headers, library)
    return library


def find_compiler() -> str | None:
    """The C++ compiler: $CXX, else the first of the usual names."""
    names = [os.environ.get("CXX", ""), "g++", "c++", "clang++"]
    return next((found for name in names if name and (found := shutil.which(name)) is not None), None)


def cache_folder() -> Path:
    """Where builds are kept, of this user alone."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "hprof"


def _digest(compiler: str, headers: Sequence[CuptiHeaders]) -> str:
    made_of = hashlib.sha256(__version__.encode())
    for file in sorted(path for path in NATIVE.rglob("*") if path.is_file()):
        made_of.update(file.name.encode() + b"\0" + file.read_bytes())
    status = Path(compiler).stat()
    made_of.update(f"{compiler} {status.st_size} {status.st_mtime_ns} {_FLAGS} {_LINK}".encode())
    for one in headers:
        made_of.update(f"{one.api_version} {one.cupti} {one.cuda}".encode())
    return made_of.hexdigest()[:16]


def _build(compiler: str, headers: Sequence[CuptiHeaders], library: Path) -> None:
    """Compile side by side, link, and rename into place: whoever builds the same at once makes the same."""
    try:
        library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = tempfile.TemporaryDirectory(dir=library.parent, prefix=".build-")
    except OSError as error:
        raise HprofError(
            f"{library.parent} cannot be written ({error.strerror}), and the recorder's library is kept there; set "
            "XDG_CACHE_HOME to a folder of yours."
        ) from error
    with folder as made:
        jobs = {f"{made}/{one.api_version}.o": [*header_flags(one), str(NATIVE / _PER_HEADERS)] for one in headers}
        jobs |= {f"{made}/{name}.o": [str(NATIVE / name)] for name in _COMMON}
        _run_all([[compiler, *_FLAGS, "-c", *arguments, "-o", target] for target, arguments in jobs.items()])
        half = f"{made}/library.so"
        linking = [compiler, *jobs, *_LINK, "-o", half, "-ldl"]
        try:
            _run_all([[*linking, *_STATIC]])
        except HprofError:  # some systems keep the static libstdc++ in a package of its own
            _run_all([linking])
        Path(half).replace(library)


def header_flags(headers: CuptiHeaders) -> list[str]:
    """What a file that reads CUPTI's records is compiled with."""
    layouts = [f"-D{macro}={headers.newest_layout(name)}" for macro, name in _RECORDS.items()]
    folders = [f"-I{NATIVE / 'stubs'}", f"-I{headers.cupti}", f"-I{headers.cuda}"]
    return [f"-DHPROF_NAMESPACE=cupti_{headers.api_version}", *layouts, *folders]


def _run_all(commands: Sequence[Sequence[str]]) -> None:
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
                raise HprofError(_does_not_compile(commands[0][0], said))
    except subprocess.TimeoutExpired as error:
        raise HprofError(_does_not_compile(commands[0][0], f"error: no end within {_TIMEOUT_S} s")) from error
    finally:
        for process in started:
            if process.poll() is None:  # the compiler proper is a child of what was started
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _does_not_compile(compiler: str, said: str) -> str:
    lines = said.splitlines() or ["it does not say why"]
    reason = next((line for line in lines if "error" in line), lines[0])
    return (
        f"the recorder's library does not compile with {compiler} ({reason[:300].strip()}); try another compiler with "
        "CXX=..., or install CUPTI's headers again."
    )
