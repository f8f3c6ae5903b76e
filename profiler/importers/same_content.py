"""Tells traces that are the same bytes, whatever they are called: a copy of a trace is no second process."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Final

from executor.errors import HprofError
from profiler.importers.base import is_packed

_BLOCK_BYTES: Final = 1 << 20


def same_content(paths: Sequence[Path]) -> Iterator[tuple[int, int]]:
    """Places of two traces of which one holds all bytes of the other, the earlier first.

    A packed file is what it unpacks to, and a folder all its files, whatever they are called. Files are read only where
    others are of their size. Raises HprofError for a file that cannot be read.
    """
    files = [_files(path) for path in paths]
    every = {file for found in files for file in found}
    try:
        sizes = Counter(file.stat().st_size for file in every)
        packed = {file for file in every if is_packed(file)}
        # how much a packed file holds is known once it is unpacked: one makes all others to be looked at
        alike = {file for file in every if packed or sizes[file.stat().st_size] > 1}
        told = {file: _digest(file, is_packed=file in packed) if file in alike else str(file) for file in every}
    except OSError as error:
        raise HprofError(f"{error.filename} cannot be read: {error.strerror}; check its permissions.") from error
    contents = [{told[file] for file in found} for found in files]
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for later, content in enumerate(contents):
        for earlier in sorted({place for one in content for place in holders[one]}):
            if content <= contents[earlier] or content >= contents[earlier]:
                yield earlier, later
        for one in content:
            holders[one].append(later)


def _files(path: Path) -> list[Path]:
    """The files of a trace that hold something, each by the name that is no link."""
    found = path.iterdir() if path.is_dir() else [path]
    return [file.resolve() for file in found if file.is_file() and file.stat().st_size]


def _digest(file: Path, *, is_packed: bool) -> str:
    digest = hashlib.blake2b()
    with gzip.open(file) if is_packed else file.open("rb") as content:
        for block in _blocks(content):
            digest.update(block)
    return digest.hexdigest()


def _blocks(content: gzip.GzipFile | BufferedReader) -> Iterator[bytes]:
    try:
        while block := content.read(_BLOCK_BYTES):
            yield block
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return  # what came before the damage is what importers read too
