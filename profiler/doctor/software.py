"""What is installed: hprof's own packages, and what `hprof record`, nsys imports and NVTX ranges need."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from executor.version import __version__
from profiler.doctor.check import HealthCheck
from profiler.facts import command_output

_PACKAGES: Final = ("executor", "profiler", "dashboard")
_ROOT: Final = Path(__file__).resolve().parents[2]


def software_checks() -> Iterator[HealthCheck]:
    """hprof itself, then other tools."""
    yield packages_check({name: package_place(name) for name in _PACKAGES}, _ROOT)
    yield recorder_check()
    yield nsys_check(shutil.which("nsys"))
    yield nvtx_check(importlib.util.find_spec("nvtx") is not None)


def package_place(name: str) -> Path | None:
    """The folder that Python would import a package from; None where there is none."""
    found = importlib.util.find_spec(name)
    places = list(found.submodule_search_locations or ()) if found is not None else []
    return Path(places[0]).resolve() if places else None


def packages_check(places: Mapping[str, Path | None], root: Path) -> HealthCheck:
    """Whether another project's package of the same name hides one of hprof's, which all lie in `root`."""
    versions = f"hprof {__version__}, Python {platform.python_version()} ({sys.executable})."
    hidden = [f"{name} at {place}" for name, place in places.items() if place != root / name]
    if not hidden:
        return HealthCheck("hprof", "ok", versions)
    advice = "install hprof into an environment of its own (pipx install hprof), or leave that folder off PYTHONPATH."
    return HealthCheck("hprof", "broken", f"{versions} Hidden by another project's: {', '.join(hidden)}.", advice)


def recorder_check() -> HealthCheck:
    """Whether `hprof record` can compile its library; it is not compiled here."""
    from executor.compiling import find_compiler
    from profiler.recording.cupti_files import find_headers, find_libraries

    if not sys.platform.startswith("linux"):
        return HealthCheck("hprof record", "absent", f"It records on Linux alone, and this is {platform.system()}.")
    headers = find_headers()
    missing = [] if find_compiler() else ["a C++ compiler (apt install g++)"]
    missing += [] if headers else ["CUPTI's headers (pip install 'hprof[record]')"]
    missing += [] if find_libraries() else ["libcupti (pip install 'hprof[record]', or a CUDA toolkit)"]
    if missing:
        return HealthCheck("hprof record", "absent", "It records CUDA programs.", f"install {', '.join(missing)}.")
    majors = " and ".join(str(one.cuda_major) for one in headers)
    return HealthCheck("hprof record", "ok", f"A compiler and CUPTI for CUDA {majors} are here.")


def nsys_check(path: str | None) -> HealthCheck:
    """Whether .nsys-rep files can be imported; their .sqlite exports need nothing."""
    if path is None:
        advice = "install Nsight Systems for .nsys-rep files and --nsys; exports to .sqlite are read without it."
        return HealthCheck("nsys", "absent", "nsys is not in PATH.", advice)
    said = (command_output([path, "--version"]) or "").strip().splitlines()
    return HealthCheck("nsys", "ok", f"{said[0] if said else 'nsys'} at {path}.")


def nvtx_check(is_there: bool) -> HealthCheck:
    """Whether ranges of hprof's own steps reach another profiler."""
    if is_there:
        return HealthCheck("nvtx", "ok", "Ranges of passes, ubatches and layers reach nsys and hprof record.")
    return HealthCheck(
        "nvtx", "absent", "The package nvtx is missing: other profilers see no ranges.", "pip install nvtx"
    )
