"""Whether kernels written in Triton can be compiled here. Triton itself is imported by those who have such kernels."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shutil

_OLDEST_TRITON = (3, 3)  # kernels return tuples, and a compiled kernel takes all arguments of its function


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed, new enough, and finds the C compiler that it builds its launchers with."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or importlib.util.find_spec("triton") is None:
        return False
    version = importlib.import_module("triton").__version__
    return tuple(int(part) for part in version.split(".")[:2]) >= _OLDEST_TRITON
