"""Arms that are processes: a name, words of a command line and variables, as `--arm NAME=WORDS` spells them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from executor.errors import HprofError

_VARIABLE: Final = re.compile(r"^[A-Z_][A-Z0-9_]*=")
_COMMANDS_VARIABLE: Final = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
_OPERATORS: Final = frozenset("();<>|&")
_SHOWN: Final = 60  # characters of an arm in an error


@dataclass(frozen=True, slots=True)
class EngineArm:
    """A name, words of a command line (of llama-bench its flags, of a command all of it) and environment variables."""

    name: str
    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    binary: str | None = None  # where arms are builds: the program of this one; null: the request's

    @property
    def spelled(self) -> str:
        """As it is typed: variables, then words."""
        return " ".join([*(f"{name}={value}" for name, value in self.environment), shlex.join(self.words)]).strip()


def flag_arm(text: str) -> EngineArm:
    """Read `NAME=FLAGS`: words that look like VARIABLE=VALUE go to the environment, wherever they stand.

    Backslashes belong to a pattern, as in `blk\\.\\d+`. Raises HprofError for anything else.
    """
    name, flags = _named(text, 'FLAGS; write for example --arm on="-pw 1"')
    split = _split(text, lambda: list(_with_backslashes(flags)))
    variables = [_variable(word) for word in split if _VARIABLE.match(word)]
    return EngineArm(name, tuple(word for word in split if not _VARIABLE.match(word)), tuple(variables))


def command_arm(text: str) -> EngineArm:
    """Read `NAME=COMMAND`, split as a shell does it: VARIABLE=VALUE in front goes to the environment.

    No shell runs it. Raises HprofError where one would be needed, and for what is no name and command.
    """
    name, command = _named(text, 'COMMAND; write for example --arm on="./serve --prefetch 1"')
    split = _split(text, lambda: shlex.split(command))
    if operator := next((token for token in _shell_tokens(command) if set(token) <= _OPERATORS), None):
        raise HprofError(
            f"--arm {text[:_SHOWN]!r}: {operator!r} is the shell's, and no shell runs the command; put quotes around "
            f"it, or write --arm {name}=\"sh -c '...'\"."
        )
    variables = list(takewhile(_COMMANDS_VARIABLE.match, split))
    words = tuple(split[len(variables) :])
    if not words:
        raise HprofError(f"--arm {text[:_SHOWN]!r} names no program to run; write it after the name.")
    return EngineArm(name, words, tuple(map(_variable, variables)))


def check_distinct(arms: Sequence[EngineArm]) -> None:
    """HprofError where two arms have one name."""
    names = [arm.name for arm in arms]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise HprofError(f"--arm gives the name {twice!r} twice; give each arm a name of its own.")


def _named(text: str, expected: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not (equals and name.strip()):
        raise HprofError(f"--arm {text[:_SHOWN]!r} is not NAME={expected}.")
    return name.strip(), rest


def _split(text: str, words: Callable[[], list[str]]) -> list[str]:
    try:
        return words()
    except ValueError as error:
        raise HprofError(f"--arm {text[:_SHOWN]!r} has a quote that does not end ({error}); close it.") from error


def _with_backslashes(text: str) -> shlex.shlex:
    words = shlex.shlex(text, posix=True)
    words.whitespace_split = True
    words.escape = words.commenters = ""
    return words


def _shell_tokens(command: str) -> list[str]:
    """Words with their quotes, so that a quoted operator is none."""
    tokens = shlex.shlex(command, posix=False, punctuation_chars=True)
    tokens.whitespace_split = True
    tokens.commenters = ""
    return list(tokens)


def _variable(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value
