"""The public face of hprof: `import hprof`, `python -m hprof`, and the `hprof` command.

`hprof.open` reads a capture, `hprof.list` finds some, `hprof.run` makes one and `hprof.compare` holds two against each
other (docs/python.md). `hprof.ab`, `hprof.record` and `hprof.range` measure PyTorch code, as
docs/measuring-your-code.md shows; `hprof.check` proves the order of its CUDA work.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from hprof.command_line import foreign_package, main

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from typing import Literal

    import pandas as pd

    from executor.errors import HprofError
    from executor.version import __version__
    from hprof.compared import Compared
    from hprof.opened import OpenedCapture
    from profiler.recording.in_process import InProcessRecording
    from profiler.recording.ranges import NamedRange
    from profiler.running.ab import AB
    from profiler.watching.checking import Check

    Sizes = int | Sequence[int]

__all__ = [
    "HprofError",
    "__version__",
    "ab",
    "check",
    "compare",
    "list",
    "main",
    "open",
    "range",
    "record",
    "run",
]

# Read when asked for: `executor` may be another project's package, which is to be told in a sentence.
_LATE = {"HprofError": "executor.errors", "__version__": "executor.version"}


def open(path: str | PathLike[str] | OpenedCapture | InProcessRecording | AB) -> OpenedCapture:  # noqa: A001 - as expected
    """Open the capture at `path` (a folder or any fsspec URL), or the one that a recording or A/B of this process has
    written; tables and metrics come as pandas frames.

    hprof.open("traces/mine")                       # the answer, where a notebook shows it
    hprof.open("traces/mine").figures(arm="on")     # docs/python.md has the rest

    Raises `hprof.HprofError` where there is no capture that can be read.
    """
    _refuse_foreign_packages()
    from hprof.opened import OpenedCapture

    return OpenedCapture.open(_address(path, "hprof.open"))


def run(
    model: str | PathLike[str] = "tiny-dense",
    path: str | PathLike[str] | None = None,
    *,
    arms: str | Sequence[str] = ("off", "on"),
    n_prompt: Sizes = 512,
    n_gen: Sizes = 16,
    n_ubatch: Sizes = (32, 256),
    n_depth: Sizes = 0,
    repetitions: int = 6,
    boots: int = 1,
    device: Literal["cpu", "cuda", "sim"] | None = None,
    options: Sequence[str] = (),
    force: bool = False,
) -> OpenedCapture:
    """Run A/B passes as `hprof run` does and open the capture that they leave at `path` (default: traces/<model>).

    hprof.run("qwen3-30b-a3b", "traces/q", device="sim", n_gen=0, n_ubatch=[128, 512, 2048])

    options: further words of `hprof run`, such as ["-ncmoe", "24", "--quant", "Q4_K_M"]. force: replace a capture that
    is there. Raises `hprof.HprofError` for what cannot be run, as the command says it.
    """
    _refuse_foreign_packages()
    from hprof.opened import OpenedCapture
    from profiler.cli.run import run_words

    named = arms if isinstance(arms, str) else ",".join(arms)  # "off,on" as the command has it
    words = ["-m", os.fspath(model), "--arms", named, "-r", str(repetitions), "--boots", str(boots)]
    for option, sizes in {"-p": n_prompt, "-n": n_gen, "-ub": n_ubatch, "-d": n_depth}.items():
        words += [option, ",".join(map(str, [sizes] if isinstance(sizes, int) else sizes))]
    words += ["--device", device] if device is not None else []
    words += ["-o", os.fspath(path)] if path is not None else []
    words += ["--force"] if force else []
    return OpenedCapture.open(run_words([*words, *options]))


def compare(
    a: str | OpenedCapture | AB, b: str | OpenedCapture | AB, *, noise: float = 0.01, fail_on: str | Sequence[str] = ()
) -> Compared:
    """Hold capture B against A, as `hprof compare` does; either may be a part, "traces/run#on,ub=512".

    fail_on: one limit or several, such as "ttft>+5%", which `.failed()` answers. Raises `hprof.HprofError` for what
    cannot be matched.
    """
    _refuse_foreign_packages()
    from hprof.compared import Compared
    from profiler.compare import compare_captures

    sides = [os.fsdecode(_address(side, "hprof.compare")) for side in (a, b)]
    limits = [fail_on] if isinstance(fail_on, str) else fail_on
    return Compared(compare_captures(*sides, noise=noise, fail_on=limits))


def list(folder: str | PathLike[str] = "traces") -> pd.DataFrame:  # noqa: A001 - as `hprof.open`
    """The captures in a folder, newest first: name, path, state, source, model, arms, created_utc, n_passes, problem.

    Raises `hprof.HprofError` where there is no such folder.
    """
    _refuse_foreign_packages()
    from dataclasses import asdict, fields

    import pandas as pd

    from profiler.capture import CaptureSummary, list_captures

    columns = [field.name for field in fields(CaptureSummary)]
    return pd.DataFrame([asdict(found) for found in list_captures(folder)], columns=columns)


def check(*, raises: bool = True) -> Check:
    """Watch the CUDA work that this thread issues inside a `with`, and prove its order at the end (docs/checking.md).

    raises: whether `hprof.HprofError` with the first finding ends it, or only its `result` tells. Raises HprofError
    where torch sees no GPU.
    """
    _refuse_foreign_packages()
    from profiler.watching.checking import Check

    return Check(raises=raises)


def ab(path: str | PathLike[str], repetitions: int = 6, *, record: bool = True, force: bool = False) -> AB:
    """Measure callables against each other in this process, in turn, and write the capture `path`.

    with hprof.ab("traces/mine", repetitions=6) as ab:
        ab.arm("off", step_without)
        ab.arm("on", step_with)

    It takes two arms or more, the first the baseline. They run when the block ends: warm-ups, then `repetitions` calls
    of each in ABBA blocks, each timed until the devices are idle. With `record` each runs once more under
    torch.profiler, untimed, for `<path>-recorded`.
    Raises `hprof.HprofError` where a capture cannot be written; what an arm raises comes through.
    """
    _refuse_foreign_packages()
    from profiler.running.ab import AB

    return AB(path, repetitions, record=record, force=force)


def record(path: str | PathLike[str], arm: str = "recorded", *, force: bool = False) -> InProcessRecording:
    """Record the PyTorch code inside `with hprof.record("traces/mine", arm="on"):` and write the capture `path`.

    Raises `hprof.HprofError` on entry where the capture cannot be written, or a profiler of torch's runs already.
    """
    _refuse_foreign_packages()
    from profiler.recording.in_process import InProcessRecording

    return InProcessRecording(path, arm, force=force)


def range(name: str) -> NamedRange:  # noqa: A001 - as `hprof.open`
    """Name a step, as `@hprof.range("ffn 3")` or `with hprof.range("ffn 3"):`; a number at the end is its layer."""
    _refuse_foreign_packages()
    from profiler.recording.ranges import NamedRange

    return NamedRange(name)


if not TYPE_CHECKING:  # for a type checker, a module with __getattr__ has every attribute

    def __getattr__(name: str) -> object:
        if name not in _LATE:
            raise AttributeError(f"module 'hprof' has no attribute {name!r}")
        _refuse_foreign_packages()
        return getattr(importlib.import_module(_LATE[name]), name)


def _address(given: object, caller: str) -> str | PathLike[str]:
    """Of what people hold in their hands: an address, an opened capture, or what wrote one in this process."""
    from executor.errors import HprofError

    if isinstance(given, str | bytes | os.PathLike):
        return os.fsdecode(given)
    found = getattr(given, "path", None) or getattr(given, "capture", None)
    if isinstance(found, str):
        return found
    if hasattr(given, "capture"):
        raise HprofError(f"{caller}: there is no capture yet; give it after the `with` block that writes it has ended.")
    raise HprofError(f"{caller}: {type(given).__name__} is no capture's address; give a folder such as 'traces/mine'.")


def _refuse_foreign_packages() -> None:
    if (problem := foreign_package()) is not None:
        raise ImportError(problem)
