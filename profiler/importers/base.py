"""What every importer takes and gives back, and a bounded look at a file's head that tells its kind.

An importer is one pure function `read(path, options) -> Imported`; only `profiler.importers.import_files` writes
a capture. This module imports nothing heavy: `hprof import -h` and the dashboard read the kinds from it.

`profiler.importers.import_files` is the only place that writes a capture; importers only read.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

from executor.errors import HprofError

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["nsys", "nsys-stats", "kineto", "llama-bench"]


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the user asked for, the same for every importer."""

    arm: str | None = None  # the name of the arm that this file is, from `--arm NAME=FILE`
    arm_by: tuple[str, ...] = ()  # fields that set arms apart, from `--arm-by`; empty: those that differ


@dataclass(slots=True)
class Imported:
    """One file, read.

    `tables` holds the tables of `profiler.schema.TABLES` that the source can fill, each in its exact schema.
    Times are int64 ns; the earliest row need not be 0 (`import_files` shifts them to the capture's start).
    `manifest_fields` are values for fields of `profiler.manifest.Manifest`, by field name.
    """

    source: str  # the manifest's `source`: "nsys", "kineto", "llama-bench"
    tables: dict[str, pa.Table]
    manifest_fields: dict[str, Any] = field(default_factory=dict)
    cannot_say: list[str] = field(default_factory=list)  # a sentence for each thing the source could not say
    dropped: Counter[str] = field(default_factory=Counter)  # reason -> rows that were left out
    warnings: list[str] = field(default_factory=list)  # sentences to show beside the figures
    default_arm: str | None = None  # the arm of its passes where the file itself names none


class Importer(Protocol):
    """The signature of every importer's `read`; raises HprofError for input that it cannot read."""

    def __call__(self, path: Path, options: ImportOptions, /) -> Imported: ...


HEAD_BYTES: Final = 64 * 1024
_SQLITE: Final = b"SQLite format 3\x00"
_GZIP: Final = b"\x1f\x8b"
_REPORT_SUFFIXES: Final = (".nsys-rep", ".qdrep")
_KINETO_KEYS: Final = (b'"traceEvents"', b'"deviceProperties"', b'"schemaVersion"', b'"baseTimeNanoseconds"')
_BENCH_MARKS: Final = (b"build_commit", b"llama_bench", b"model_filename", b"n_gpu_layers")
_KNOWN: Final = ", ".join(get_args(Kind))


def detect(path: Path) -> Kind:
    """The importer that can read `path`; HprofError names the file when none can."""
    check_file(path)
    if path.is_dir():
        return _detect_folder(path)
    if path.suffix.lower() in _REPORT_SUFFIXES:
        return "nsys"
    kind = _detect_bytes(read_head(path))
    if kind is None:
        raise HprofError(f"{path} is no trace that hprof knows; if it is one of {_KNOWN}, say so with --kind.")
    return kind


def check_file(path: Path) -> None:
    """Refuse what is neither a file nor a folder: a pipe or a device may give bytes for ever, or none."""
    if not path.exists():
        raise HprofError(f"{path} does not exist; give the path of a trace file or of an exported folder.")
    if not (path.is_dir() or path.is_file()):
        raise HprofError(f"{path} is not a regular file; give the path of a trace file.")


def check_unpacked(path: Path) -> None:
    """Refuse a packed file of a kind that is read as it lies there."""
    if path.is_file() and path.suffix.lower() not in _REPORT_SUFFIXES and _first_bytes(path, 2) == _GZIP:
        raise HprofError(f"{path} is packed with gzip, and only torch.profiler's traces are read so; gunzip it first.")


def read_head(path: Path, n_bytes: int = HEAD_BYTES) -> bytes:
    """At most `n_bytes` from the start of the file, decompressed when it is gzip."""
    head = _first_bytes(path, n_bytes)
    if not head.startswith(_GZIP):
        return head
    unpacked = b""
    try:
        with gzip.open(path) as file:
            while len(unpacked) < n_bytes and (block := file.read1(n_bytes - len(unpacked))):
                unpacked += block
    except (OSError, EOFError, zlib.error):
        pass  # what came before the damage says what the file is
    return unpacked


def _first_bytes(path: Path, n_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(n_bytes)
    except OSError as error:
        raise HprofError(f"{path} cannot be read: {error.strerror}; check its permissions.") from error


def _detect_folder(path: Path) -> Kind:
    if any(path.glob("*.parquet")) or any(path.glob("*.arrow*")):
        return "nsys"
    raise HprofError(
        f"{path} holds no .parquet or .arrow tables; give the folder that `nsys export -t parquetdir` wrote, or a file."
    )


def _detect_bytes(head: bytes) -> Kind | None:
    if head.startswith(_SQLITE):
        return "nsys"
    if b"Start (" in head and b"Duration (" in head and b"SrcMemKd" in head:
        return "nsys-stats"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if any(mark in head for mark in _BENCH_MARKS) or text.startswith(b"| model"):
        return "llama-bench"
    is_json = text.startswith((b"{", b"["))
    if is_json and (any(key in head for key in _KINETO_KEYS) or b'"ph"' in head):
        return "kineto"
    return None
