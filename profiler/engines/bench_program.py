"""llama-bench as a program: where it is, what its build calls itself, and what its endings mean."""

from __future__ import annotations

import hashlib
import itertools
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executor.errors import HprofError
from profiler.engines.arms import EngineArm
from profiler.engines.process import FinishedProgram, run_program

_OUTPUT_FLAGS: Final = ("-o", "--output", "-oe", "--output-err")
_REFUSED: Final = re.compile(r"(?:invalid parameter for argument|unknown argument)[: ]+(\S+)")
# said with exit code 0: the rows would be those of a run without the override
_NOT_DONE: Final = re.compile(r"^.*(?:unrecognized buffer type|unknown buffer type|invalid override).*$", re.MULTILINE)
_COMMIT: Final = re.compile(r"\(([0-9a-f]{6,40})\)")
_SHORT_S: Final = 10.0  # for --version and --help


@dataclass(frozen=True, slots=True)
class BenchProgram:
    """One build of llama-bench."""

    path: str
    version: str | None  # what `--version` says, on either stream; null where it does not know the flag
    sha256: str

    @property
    def commit(self) -> str | None:
        """The short commit that the version names."""
        found = _COMMIT.search(self.version or "")
        return found[1] if found else None


def find_program(binary: str) -> BenchProgram:
    """The program; HprofError where it is none."""
    path = shutil.which(binary)
    if path is None:
        raise HprofError(f"{binary} is no program that can be run; give --bin the path of llama-bench.")
    done = run_program([path, "--version"], {}, _SHORT_S)
    said = next((line.strip() for line in f"{done.output}\n{done.errors}".splitlines() if "version" in line), None)
    with Path(path).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return BenchProgram(path, said[:200] if said and done.code == 0 else None, digest)


def knows_progress(binary: str) -> bool:
    """Whether this build can say when each repetition begins."""
    helped = run_program([binary, "--help"], {}, _SHORT_S)
    return "--progress" in helped.output + helped.errors


def build_names(programs: Sequence[BenchProgram]) -> dict[str, str]:
    """Name -> path of several builds: by commit, where each tells one and all differ; else by number."""
    commits = [program.commit for program in programs]
    are_known = None not in commits and len(set(commits)) == len(commits)
    names = [f"build={commit}" if are_known else f"build={n + 1}" for n, commit in enumerate(commits)]
    return {name: program.path for name, program in zip(names, programs, strict=True)}


def check_flags(flags: Sequence[str], arms: Sequence[EngineArm]) -> None:
    """HprofError where there is no arm, or a flag is hprof's to set."""
    if not arms:
        raise HprofError('there is no arm to run; give at least one, such as --arm off="-pw 0" --arm on="-pw 1".')
    for word in (*flags, *(flag for arm in arms for flag in arm.words)):
        if word in _OUTPUT_FLAGS:
            raise HprofError(f"{word} is hprof's to set, as it reads llama-bench's output; leave it out.")


def find_nsys() -> str:
    """The path of nsys; HprofError where it is not on PATH."""
    nsys = shutil.which("nsys")
    if nsys is None:
        raise HprofError("--nsys needs Nsight Systems, and nsys is not on PATH; install it, or leave --nsys out.")
    return nsys


def where(binary: str, arm: EngineArm) -> str:
    """The program and the arm, for an error."""
    return f"{binary}, arm {arm.name} ({arm.spelled})" if arm.spelled else f"{binary}, arm {arm.name}"


def check_override(done: FinishedProgram, binary: str, arm: EngineArm) -> None:
    """HprofError where the program went on without what it was asked for: its rows are not the arm's."""
    if found := _NOT_DONE.search(done.errors) or _NOT_DONE.search(done.output):
        raise HprofError(
            f"{where(binary, arm)}: it does not take the override ({found[0].strip()[:200]}); correct -ot."
        )


def check_ending(done: FinishedProgram, binary: str, arm: EngineArm, words: Sequence[str], timeout_s: float) -> None:
    """HprofError where the program did not end well. words: its command line."""
    at = where(binary, arm)
    if done.timed_out:
        raise HprofError(
            f"{at}: not done after {timeout_s:g} s, so it was ended; ask for fewer repetitions, or give --timeout."
        )
    if refused := _REFUSED.search(done.errors) or _REFUSED.search(done.output):
        raise HprofError(f"{at}: {_refusal(binary, refused[1], words)}")
    if done.code != 0:
        raise HprofError(f"{at}: {done.ending}, {done.last_words}; run it by hand to see why.")


def _refusal(binary: str, flag: str, words: Sequence[str]) -> str:
    """llama-bench says the same of a flag that it does not know and of a value that is wrong; its help tells."""
    helped = run_program([binary, "--help"], {}, _SHORT_S)
    is_known = re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", helped.output + helped.errors) is not None
    given = next((value for word, value in itertools.pairwise(words) if word == flag), None)
    if is_known and given is not None:
        return f"it takes {flag}, but not the value {given[:80]!r}; `{binary} --help` lists what it takes."
    return f"it does not take {flag!r}; use a build that has it, or other flags."
