"""Finds CUPTI on this machine: its headers, which the library is built with, and its libraries, which programs load.

Both come with the CUDA toolkit, and in wheels: `nvidia-cuda-cupti-cu12` with `nvidia-cuda-runtime-cu12` for CUDA 12,
`nvidia-cuda-cupti` with `nvidia-cuda-runtime` for 13, which torch's builds for CUDA bring along.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executor.errors import HprofError
from executor.files import bounded_read

_MAX_HEADER_BYTES: Final = 16 << 20
_VERSION: Final = re.compile(rb"^#define CUPTI_API_VERSION\s+(\d+)", re.MULTILINE)
_LIBRARY: Final = re.compile(r"^libcupti\.so\.(\d+)$")
_FIRST_API_VERSION: Final = 18  # of CUDA 12.0


@dataclass(frozen=True, slots=True)
class CuptiHeaders:
    """One set of headers."""

    api_version: int  # CUPTI_API_VERSION
    cupti: Path  # the folder of cupti_activity.h
    cuda: Path  # the folder of cuda.h

    @property
    def cuda_major(self) -> int:
        """12 or 13: what a libcupti must be of for records to be laid out so."""
        return self.api_version // 10_000 if self.api_version >= 10_000 else 12

    def newest_layout(self, name: str) -> str:
        """The newest layout of a record in these headers: `Kernel` -> `CUpti_ActivityKernel9`.

        It is the one that their libcupti writes. Old layouts keep their names, with lower numbers.
        """
        text = bounded_read(self.cupti / "cupti_activity.h", _MAX_HEADER_BYTES, "a header", "install CUPTI again")
        numbers = re.findall(rb"\}\s*CUpti_Activity" + name.encode() + rb"(\d*)\s*;", text)
        if not numbers:
            raise HprofError(f"{self.cupti} has no record CUpti_Activity{name}; install CUPTI of CUDA 12 or 13.")
        newest = max((int(number or 1) for number in numbers), default=1)
        return f"CUpti_Activity{name}{newest if newest > 1 else ''}"


def find_headers() -> list[CuptiHeaders]:
    """The newest headers of each major version of CUDA, newest first; empty where there are none."""
    newest: dict[int, CuptiHeaders] = {}
    for cupti, cuda in _header_folders():
        if not ((cupti / "cupti_activity.h").is_file() and (cuda / "cuda.h").is_file()):
            continue
        found = _VERSION.search((cupti / "cupti_version.h").read_bytes()) if _has_version(cupti) else None
        if found is None or int(found[1]) < _FIRST_API_VERSION:
            continue
        headers = CuptiHeaders(int(found[1]), cupti, cuda)
        known = newest.get(headers.cuda_major)
        if known is None or headers.api_version > known.api_version:
            newest[headers.cuda_major] = headers
    return [newest[major] for major in sorted(newest, reverse=True)]


def find_libraries() -> list[Path]:
    """Every libcupti, of newer CUDA first: which one the driver is new enough for shows in the recorded process.

    The variable HPROF_LIBCUPTI names the one to take instead.
    """
    if chosen := os.environ.get("HPROF_LIBCUPTI"):
        return [Path(chosen)] if Path(chosen).is_file() else []
    found: dict[str, tuple[int, Path]] = {}
    for folder in _library_folders():
        for file in sorted(folder.glob("libcupti.so.*")):
            named = _LIBRARY.match(file.name)
            if named is not None and int(named[1]) >= 12 and file.is_file():
                found.setdefault(str(file.resolve()), (int(named[1]), file))
    return [file for _, file in sorted(found.values(), key=lambda one: -one[0])]


def _has_version(cupti: Path) -> bool:
    return (cupti / "cupti_version.h").is_file()


def _header_folders() -> Iterator[tuple[Path, Path]]:
    """(folder of CUPTI's headers, folder of cuda.h) wherever they may be."""
    for home in _toolkits():
        for include in (home / "include", *sorted(home.glob("targets/*/include"))):
            yield include, include
            yield home / "extras" / "CUPTI" / "include", include
    for nvidia in _wheel_folders():
        yield nvidia / "cuda_cupti" / "include", nvidia / "cuda_runtime" / "include"
        for one in sorted(nvidia.glob("cu[0-9]*")):
            yield one / "include", one / "include"


def _library_folders() -> Iterator[Path]:
    for nvidia in _wheel_folders():
        yield nvidia / "cuda_cupti" / "lib"
        for one in sorted(nvidia.glob("cu[0-9]*")):
            yield one / "lib"
    for home in _toolkits():
        yield home / "extras" / "CUPTI" / "lib64"
        yield from (home / "lib64", home / "lib", *sorted(home.glob("targets/*/lib")))
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if folder:
            yield Path(folder)
    yield from (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"), Path("/usr/lib64"))


def _toolkits() -> list[Path]:
    named = [Path(home) for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    usual = [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True), Path("/opt/cuda")]
    return [home for home in dict.fromkeys(named + usual) if home.is_dir()]


def _wheel_folders() -> list[Path]:
    return [nvidia for entry in dict.fromkeys(sys.path) if (nvidia := Path(entry or ".") / "nvidia").is_dir()]
