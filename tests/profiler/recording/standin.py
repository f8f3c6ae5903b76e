"""The stand-in for libcupti, compiled: for the tests here, and for benchmarks/faults.py."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from profiler.recording.build import header_flags
from profiler.recording.cupti_files import CuptiHeaders

HERE: Final = Path(__file__).parent
PROGRAM: Final = HERE / "program.py"


def compiled_standin(compiler: str, headers: CuptiHeaders, folder: Path) -> Path:
    """A libcupti of these headers in `folder`, which emits the records that a program asks for."""
    name = f"libcupti.so.{headers.cuda_major}"
    command = [compiler, "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", *header_flags(headers)]
    done = subprocess.run(
        [*command, str(HERE / "standin_cupti.cpp"), f"-Wl,-soname,{name}", "-o", str(folder / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / name
