"""What a trace format is made of, the list of all formats, and a bounded look at a file that tells which one it is.

A format is one module with three pure functions: `detect` knows a file by its first bytes, `read` turns it into
tables, `sample` gives the smallest file of the format. Its `FORMAT` names them; `FORMATS` below lists the modules.
Nothing heavy is imported here: `hprof import -h` reads the kinds, and a format's module is loaded when a file comes.

`profiler.importers.import_files` is the only place that writes a capture; importers only read.
"""

from __future__ import annotations

import gzip
import importlib
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from executor.errors import HprofError
from executor.files import first_bytes

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS: Final[dict[str, str]] = {
    "nsys": "profiler.importers.nsys",
    "nsys-stats": "profiler.importers.nsys.stats",
    "kineto": "profiler.importers.kineto",
    "cupti-spool": "profiler.importers.cupti_spool",
    "llama-bench": "profiler.importers.llama_bench",
}
"""The kinds that `--kind` takes, and the module of each with its `FORMAT`; the first that knows a file reads it."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the user asked for, the same for every importer."""

    arm: str | None = None  # the name of the arm that this file is, from `--arm NAME=FILE`
    arm_by: tuple[str, ...] = ()  # fields that set arms apart, from `--arm-by`; empty: those that differ
    host_work: bool = False  # kineto: the host's operators are its compute, as there was no device to work on


@dataclass(slots=True)
class Imported:
    """One file, read.

    `tables` holds the tables of `profiler.schema.TABLES` that the source can fill, each in its exact schema.
    Times are int64 ns; the earliest row need not be 0 (`import_files` shifts them to the capture's start).
    `manifest_fields` are values for fields of `profiler.manifest.Manifest`, by field name.
    """

    source: str  # the manifest's `source`, the tool that recorded: "nsys", "kineto", ...
    tables: dict[str, pa.Table]
    manifest_fields: dict[str, Any] = field(default_factory=dict)
    cannot_say: list[str] = field(default_factory=list)  # a sentence for each thing the source could not say
    dropped: Counter[str] = field(default_factory=Counter)  # reason -> rows that were left out
    warnings: list[str] = field(default_factory=list)  # sentences to show beside the figures
    faults: list[str] = field(default_factory=list)  # those of `warnings` that are told before any figure
    default_arm: str | None = None  # the arm of its passes where the file itself names none
    is_cut_off: bool = False  # whether rows are missing at its end, so that it cannot say how long it lasted


class Importer(Protocol):
    """The signature of every importer's `read`; raises HprofError for input that it cannot read."""

    def __call__(self, path: Path, options: ImportOptions, /) -> Imported: ...


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """What a format's module says of itself, as its `FORMAT`."""

    detect: Callable[[Path, bytes], bool]  # of a file and its first HEAD_BYTES, or of a folder and b""
    read: Importer
    sample: Callable[[], bytes]  # the smallest file of this format
    endings: tuple[str, ...] = ()  # of its files' names, dot included; a capture is named without them
    converted_endings: tuple[str, ...] = ()  # of files that another program has to turn into this format first
    reads_gzip: bool = False
    has_fields: bool = False  # rows have fields, so that `--arm-by` can tell arms apart


def trace_format(kind: str) -> TraceFormat:
    """The format of a kind; raises HprofError for a kind that is none of FORMATS."""
    if kind not in FORMATS:
        raise HprofError(f"there is no kind of trace called {kind!r}; hprof reads {', '.join(FORMATS)}.")
    found: TraceFormat = importlib.import_module(FORMATS[kind]).FORMAT
    return found


def file_endings() -> list[str]:
    """The last part of the names of files that hprof reads by itself: "csv", "gz", ..., "txt"."""
    names = (ending for kind in FORMATS for ending in trace_format(kind).endings)
    return sorted({name.rpartition(".")[2] for name in names if name.startswith(".")})


def without_ending(name: str) -> str:
    """A trace's name up to its ending: `3.1.2_run.sqlite` is `3.1.2_run`, `a.pt.trace.json.gz` is `a`."""
    formats = [trace_format(kind) for kind in FORMATS]
    endings = {ending for one in formats for ending in (*one.endings, *one.converted_endings)}
    fitting = [ending for ending in endings if name.lower().endswith(ending) and len(ending) < len(name)]
    return name[: -max(map(len, fitting))] if fitting else name


HEAD_BYTES: Final = 64 * 1024
GZIP_MAGIC: Final = b"\x1f\x8b"


def detect(path: Path) -> str:
    """The kind of `path`, one of FORMATS; raises HprofError, naming the file, where no format knows it."""
    check_file(path)
    head = b"" if path.is_dir() else read_head(path)
    for kind in FORMATS:
        if trace_format(kind).detect(path, head):
            return kind
    if path.is_dir():
        from profiler.manifest import MANIFEST_NAME  # here, as it brings numpy and pyarrow

        if (path / MANIFEST_NAME).is_file():
            raise HprofError(f"{path} is a capture already: `hprof report` shows it, and --range cuts it into arms.")
        raise HprofError(
            f"{path} holds no .parquet or .arrow tables; give the folder that `nsys export -t parquetdir` wrote, "
            "or a file."
        )
    raise HprofError(f"{path} is no trace that hprof knows; if it is one of {', '.join(FORMATS)}, say so with --kind.")


def check_file(path: Path) -> None:
    """Refuse what is neither a file nor a folder: a pipe or a device may give bytes for ever, or none; and files of no
    size, such as those of the system, which may wait until there is something to tell (/proc/kmsg)."""
    if not path.exists():
        raise HprofError(f"{path} does not exist; give the path of a trace file or of an exported folder.")
    if not (path.is_dir() or path.is_file()):
        raise HprofError(f"{path} is not a regular file; give the path of a trace file.")
    if path.is_file() and path.stat().st_size == 0:
        raise HprofError(f"{path} is empty; write the trace again, or give the path of another.")


def check_unpacked(path: Path) -> None:
    """Refuse a packed file of a format that is read as it lies there."""
    if path.is_file() and is_packed(path):
        packed = " and ".join(kind for kind in FORMATS if trace_format(kind).reads_gzip)
        raise HprofError(f"{path} is packed with gzip, and only {packed} is read so; gunzip it first.")


def is_packed(path: Path) -> bool:
    """Whether a file begins as gzip does."""
    return _first_bytes(path, len(GZIP_MAGIC)) == GZIP_MAGIC


def read_head(path: Path) -> bytes:
    """At most HEAD_BYTES from the start of the file, decompressed when it is gzip."""
    head = _first_bytes(path, HEAD_BYTES)
    if not head.startswith(GZIP_MAGIC):
        return head
    unpacked = b""
    try:
        with gzip.open(path) as file:
            while len(unpacked) < HEAD_BYTES and (block := file.read1(HEAD_BYTES - len(unpacked))):
                unpacked += block
    except (OSError, EOFError, zlib.error):
        pass  # what came before the damage says what the file is
    return unpacked


def _first_bytes(path: Path, n_bytes: int) -> bytes:
    try:
        return first_bytes(path, n_bytes)
    except OSError as error:
        raise HprofError(f"{path} cannot be read: {error.strerror}; check its permissions.") from error
