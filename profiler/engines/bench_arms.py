"""Arms of a llama-bench run: a name, flags and variables, as `--arm` spells them, under one build or several."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from executor.errors import HprofError

# a list that is given twice grows in llama-bench: a flag goes to an arm once, however it is spelled
_LONG: Final = {
    "--model": "-m",
    "--n-prompt": "-p",
    "--n-gen": "-n",
    "--ubatch-size": "-ub",
    "--n-depth": "-d",
    "--repetitions": "-r",
    "--override-tensor": "-ot",
    "--n-cpu-moe": "-ncmoe",
    "--n-gpu-layers": "-ngl",
    "--load-mode": "-lm",
    "--threads": "-t",
    "--flash-attn": "-fa",
    "--batch-size": "-b",
    "--split-mode": "-sm",
    "--tensor-split": "-ts",
    "--cache-type-k": "-ctk",
    "--cache-type-v": "-ctv",
}
_VARIABLE: Final = re.compile(r"^[A-Z_][A-Z0-9_]*=")


@dataclass(frozen=True, slots=True)
class BenchArm:
    """A name, extra flags and extra environment variables."""

    name: str
    flags: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    binary: str | None = None  # where arms are builds: the program of this one; null: the request's

    @property
    def spelled(self) -> str:
        """As it is typed: variables, then flags."""
        return " ".join([*(f"{name}={value}" for name, value in self.environment), shlex.join(self.flags)]).strip()


def parse_arm(text: str) -> BenchArm:
    """Read `NAME=WORDS`: words that look like VARIABLE=VALUE go to the environment, the others to the command line.

    Raises HprofError for anything else.
    """
    name, equals, words = text.partition("=")
    if not (equals and name.strip()):
        raise HprofError(f'--arm {text[:60]!r} is not NAME=FLAGS; write for example --arm on="-pw 1".')
    try:
        split = list(_words(words))
    except ValueError as error:
        raise HprofError(f"--arm {text[:60]!r} has a quote that does not end ({error}); close it.") from error
    variables = [tuple(word.split("=", 1)) for word in split if _VARIABLE.match(word)]
    flags = tuple(word for word in split if not _VARIABLE.match(word))
    _check_split(name.strip(), flags)
    return BenchArm(name.strip(), flags, tuple((key, value) for key, value in variables))


def _words(text: str) -> shlex.shlex:
    """Words as a shell splits them, but for backslashes: they belong to the pattern, as in `blk\\.\\d+`."""
    words = shlex.shlex(text, posix=True)
    words.whitespace_split = True
    words.escape = words.commenters = ""
    return words


def _check_split(arm: str, flags: tuple[str, ...]) -> None:
    """llama-bench would take llama-server's `-ts 3,1` for two runs on one device each."""
    for flag, value in itertools.pairwise(flags):
        if flag in ("-ts", "--tensor-split") and "," in value and "/" not in value:
            raise HprofError(
                f"--arm {arm}: {flag} {value[:60]} is llama-server's spelling, and two configurations for llama-bench; "
                f"write {flag} {value[:60].replace(',', '/')}."
            )


def parse_arms(texts: tuple[str, ...]) -> tuple[BenchArm, ...]:
    """Read every `--arm`; HprofError where two have one name."""
    arms = tuple(map(parse_arm, texts))
    names = [arm.name for arm in arms]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise HprofError(f"--arm gives the name {twice!r} twice; give each arm a name of its own.")
    return arms


def without_overridden(common: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...]:
    """The flags of all arms less those, with their values, that an arm sets itself."""
    taken = {_LONG.get(word, word) for word in own} & set(_LONG.values())
    dropped = {at + i for at, word in enumerate(common) if _LONG.get(word, word) in taken for i in (0, 1)}
    return tuple(word for at, word in enumerate(common) if at not in dropped)


def arms_of_builds(arms: Sequence[BenchArm], builds: Mapping[str, str]) -> tuple[BenchArm, ...]:
    """Each arm under each build; the builds' names, such as `build=0a1b2c3`, alone where the arms have no flags.

    builds: name -> program.
    """
    is_bare = len(arms) == 1 and not arms[0].flags and not arms[0].environment
    return tuple(
        replace(arm, name=build if is_bare else f"{arm.name} {build}", binary=binary)
        for arm in arms
        for build, binary in builds.items()
    )
