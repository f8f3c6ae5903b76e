"""The one error class of hprof: what a user did or brought that cannot work; and the parts of its sentence that many
share: what another library said, which name was probably meant, and text of files made plain.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def plain(text: str) -> str:
    """Text from a file on one line, without the control characters that could steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


class HprofError(Exception):
    """One sentence that names the file or option, the fact, and the next step.

    Caught once, in `hprof.main`, which prints it to stderr and exits with `exit_code`
    (1: a check or gate failed, 2: wrong usage or bad input).
    """

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    def __str__(self) -> str:
        """On one line, and fit for a terminal: it may quote a file, and where nobody catches it Python prints it."""
        return plain(super().__str__())


class PinningRefusedError(HprofError):
    """The driver pins no more host memory; `pinned_bytes` are what it had pinned until then."""

    def __init__(self, message: str, pinned_bytes: int) -> None:
        super().__init__(message)
        self.pinned_bytes = pinned_bytes


class BudgetTooSmallError(HprofError):
    """A budget of device memory that has no room for what must lie there, wherever weights are."""

    def __init__(self, refusal: str, least_bytes: int = 0, instead: str = "lower -d, -ub or --layers") -> None:
        super().__init__(f"{refusal}: give that much, or {instead}.")
        self.refusal = refusal
        self.least_bytes = least_bytes  # a budget that would do


class CacheTooSmallError(HprofError):
    """An expert cache that could not serve a single token."""


def first_line(error: BaseException, max_length: int = 160) -> str:
    """What another library's error says, to be quoted inside a sentence: its first line, cut; its class where it says
    nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:max_length].rstrip(". ") if lines else type(error).__name__


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """`did you mean on or gated?`, of at most three names near to `name`; None where none is near."""
    near = difflib.get_close_matches(name.lower(), list(known), n=3)
    return f"did you mean {' or '.join(near)}?" if near else None
