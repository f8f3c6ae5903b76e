"""How the recorder's library is compiled, where it is first needed, by `executor.compiling`.

It needs the headers of the CUPTI that the machine has: a part of it is compiled for each version found.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from executor.compiling import NativeLibrary, find_compiler
from executor.errors import HprofError
from profiler.recording.cupti_files import CuptiHeaders, find_headers

NATIVE: Final = Path(__file__).parent / "native"
_COMMON: Final = ("spool.cpp", "recorder.cpp", "trial.cpp", "cupti.cpp", "nvtx.cpp")
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
    return _library(headers).built(compiler)


def _library(headers: Sequence[CuptiHeaders]) -> NativeLibrary:
    sources = [[*header_flags(one), str(NATIVE / _PER_HEADERS)] for one in headers]
    sources += [[str(NATIVE / name)] for name in _COMMON]
    return NativeLibrary(
        name="hprof-record",
        what="the recorder's library",
        sources=NATIVE,
        objects=[[*_FLAGS, *arguments] for arguments in sources],
        # some systems keep the static libstdc++ in a package of its own
        links=[[*_LINK, "-ldl", *_STATIC], [*_LINK, "-ldl"]],
        made_of=[f"{one.api_version} {one.cupti} {one.cuda}" for one in headers],
        remedy="try another compiler with CXX=..., or install CUPTI's headers again.",
    )


def header_flags(headers: CuptiHeaders) -> list[str]:
    """What a file that reads CUPTI's records is compiled with."""
    layouts = [f"-D{macro}={headers.newest_layout(name)}" for macro, name in _RECORDS.items()]
    folders = [f"-I{NATIVE / 'stubs'}", f"-I{headers.cupti}", f"-I{headers.cuda}"]
    return [f"-DHPROF_NAMESPACE=cupti_{headers.api_version}", *layouts, *folders]
