"""`hprof.run`: what `hprof run` does, from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

Sizes = int | Sequence[int]


def words_of_run(
    model: str | os.PathLike[str],
    path: str | os.PathLike[str] | None,
    *,
    arms: Sequence[str],
    n_prompt: Sizes,
    n_gen: Sizes,
    n_ubatch: Sizes,
    n_depth: Sizes,
    repetitions: int,
    boots: int,
    device: Literal["cpu", "cuda", "sim"] | None,
    options: Sequence[str],
    force: bool,
) -> list[str]:
    """The words of the command line that asks for the same, which the capture keeps."""
    words = ["-m", os.fspath(model), "--arms", ",".join(arms), "-r", str(repetitions), "--boots", str(boots)]
    for option, sizes in {"-p": n_prompt, "-n": n_gen, "-ub": n_ubatch, "-d": n_depth}.items():
        words += [option, ",".join(map(str, [sizes] if isinstance(sizes, int) else sizes))]
    words += ["--device", device] if device is not None else []
    words += ["-o", os.fspath(path)] if path is not None else []
    return [*words, *(["--force"] if force else []), *options]
