"""What every importer gives back. An importer is one pure function `read(path, options) -> Imported`.

`profiler.importers.import_files` is the only place that writes a capture; importers only read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

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
