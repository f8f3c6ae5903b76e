"""The one error class of hprof: what a user did or brought that cannot work."""

from __future__ import annotations


class HprofError(Exception):
    """One sentence that names the file or option, the fact, and the next step.

    Caught once, in `hprof.main`, which prints it to stderr and exits with `exit_code`
    (1: a check or gate failed, 2: wrong usage or bad input).
    """

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class PinningRefusedError(HprofError):
    """The driver pins no more host memory; `pinned_bytes` are what it had pinned until then."""

    def __init__(self, message: str, pinned_bytes: int) -> None:
        super().__init__(message)
        self.pinned_bytes = pinned_bytes
