"""Which addresses are opened, and how long one that does not answer is waited for.

A capture's address comes from a command line, a script or another program: one that led through `zip::`, `ftp://` or
`github://` would fetch and unpack what nobody meant to open. So schemes are a list; `HPROF_URL_SCHEMES` adds to it.
"""

from __future__ import annotations

import os
from typing import Any, Final

import fsspec
from fsspec.implementations.local import LocalFileSystem

from executor.errors import HprofError, first_line

SCHEMES: Final = ("file", "s3", "s3a", "gs", "gcs", "az", "abfs", "http", "https")
MORE_SCHEMES: Final = "HPROF_URL_SCHEMES"  # the environment variable: names with commas between
CONNECT_S: Final = 10
ANSWER_S: Final = 30


def opened(url: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the place in it. Raises HprofError for a scheme that is not allowed."""
    scheme, is_url, _ = url.partition("://")
    if "\0" in url:
        raise HprofError(f"{url!r} holds a null character, which no file's name does; give another path.")
    if not is_url:
        local = LocalFileSystem()
        return local, str(local._strip_protocol(url))
    allowed = (*SCHEMES, *filter(None, map(str.strip, os.environ.get(MORE_SCHEMES, "").split(","))))
    if scheme not in allowed:  # a chain such as zip::s3 is none either
        raise HprofError(
            f"{url}: no way to read such an address (not one of {', '.join(SCHEMES)}); use one of these, or name the "
            f"scheme in the variable {MORE_SCHEMES}."
        )
    if "::" in url:
        raise HprofError(f"{url}: no way to read such an address (it has '::', which chains); give the last one alone.")
    try:
        file_system, place = fsspec.core.url_to_fs(url, **_patience(scheme))
    except (ValueError, ImportError) as error:
        raise HprofError(
            f"{url}: no way to read such an address ({first_line(error)}); install what it needs, or check it."
        ) from error
    return file_system, str(place)


def unanswered(error: BaseException) -> str | None:
    """What to say of an error behind which there is nobody that answered; None where there is another reason.

    fsspec's file system of HTTP says "not found" in that case, with the true reason as the cause.
    """
    reason = error.__cause__ if isinstance(error, FileNotFoundError) else error
    if isinstance(reason, TimeoutError):
        return f"no answer within {ANSWER_S} s"
    if isinstance(reason, ConnectionError):
        return first_line(reason)
    is_clients = type(reason).__module__.startswith("aiohttp.") and isinstance(reason, OSError)
    return first_line(reason) if is_clients and reason is not None else None


def _patience(scheme: str) -> dict[str, Any]:
    """Options that end a wait. Azure's client has limits of its own (20 s to connect, 60 s to read)."""
    configured = fsspec.config.conf.get(scheme, {})
    if scheme in ("http", "https") and "client_kwargs" not in configured:
        import aiohttp

        return {"client_kwargs": {"timeout": aiohttp.ClientTimeout(sock_connect=CONNECT_S, sock_read=ANSWER_S)}}
    if scheme in ("s3", "s3a") and "config_kwargs" not in configured:
        tries = {"max_attempts": 2}
        return {"config_kwargs": {"connect_timeout": CONNECT_S, "read_timeout": ANSWER_S, "retries": tries}}
    if scheme in ("gs", "gcs") and "timeout" not in configured:
        return {"timeout": ANSWER_S}
    return {}
