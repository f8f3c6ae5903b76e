"""Reads files that a user names, within a limit: nothing that hprof is given may fill the memory or be waited for."""

from __future__ import annotations

from pathlib import Path

from executor.errors import HprofError
from executor.units import format_bytes


def bounded_read(path: Path, limit_bytes: int, what: str, advice: str) -> bytes:
    """The whole content of a regular file of at most `limit_bytes`.

    what, advice: end the sentences, as in "is larger than 1 MiB, too large for a model's config; name another file."
    Raises HprofError for a larger file, for one that cannot be read, and for a pipe or device, which may have no end.
    """
    try:
        if path.exists() and not path.is_file():
            raise HprofError(f"{path} is not a regular file; {advice}.")
        with path.open("rb") as file:
            content = file.read(limit_bytes + 1)  # not by its size, which may grow, and is 0 for files of the system
    except OSError as error:
        raise HprofError(f"{path} cannot be read ({error.strerror or error}); {advice}.") from error
    if len(content) > limit_bytes:
        raise HprofError(f"{path} is larger than {format_bytes(limit_bytes)}, too large for {what}; {advice}.")
    return content
