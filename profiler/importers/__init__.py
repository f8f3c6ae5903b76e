"""Turns what other tools recorded into a capture: `import_files` detects, reads, combines and writes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from executor.errors import HprofError
from executor.units import listed
from profiler import DEFAULT_TRACES
from profiler.importers.base import (
    FORMATS,
    Imported,
    Importer,
    ImportOptions,
    check_file,
    check_unpacked,
    detect,
    trace_format,
    without_ending,
)
from profiler.importers.same_content import same_content
from profiler.plain_text import readable

if TYPE_CHECKING:
    import pyarrow as pa

    from profiler.importers.combine import SourceFile
    from profiler.storage.writer import CaptureWriter

__all__ = [
    "FORMATS",
    "ImportOptions",
    "Imported",
    "Importer",
    "TraceInput",
    "detect",
    "import_files",
    "read_file",
    "write_capture",
]

Cut = Callable[[Imported], Imported]
_PART_ROWS: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class TraceInput:
    """A trace to import.

    arm: which arm it is; None: its rows say, or its name. cut: what makes passes of it, for who knows when they ran.
    """

    path: Path
    arm: str | None = None
    cut: Cut | None = None


def read_file(path: Path, kind: str | None = None, options: ImportOptions | None = None) -> Imported:
    """Read one trace with the importer of `kind`, or of the detected kind."""
    check_file(path)
    kind, options = kind or detect(path), options or ImportOptions()
    found = trace_format(kind)
    if options.arm_by and not found.has_fields:
        with_fields = " and ".join(kind for kind in FORMATS if trace_format(kind).has_fields)
        raise HprofError(
            f"--arm-by works for {with_fields} alone, whose rows have fields, and {path} is of kind {kind}; leave it "
            "out, and name a trace's arm with --arm NAME=FILE."
        )
    if not found.reads_gzip:
        check_unpacked(path)
    return found.read(path, options)


def import_files(
    traces: Sequence[Path | TraceInput],
    out: str | os.PathLike[str] | None = None,
    *,
    kind: str | None = None,
    options: ImportOptions | None = None,
    force: bool = False,
    argv: Sequence[str] = (),
    known: Mapping[str, object] | None = None,
) -> str:
    """Read traces and write them as one capture at `out`, a folder or fsspec URL; gives its address.

    `out` is traces/<first file's stem> where it is left out.

    traces: the first is the baseline; an arm that comes again is one more boot of it, and a bare path says itself what
    it is. options: of all of them. known: fields of the manifest that the caller knows; they are put before what the
    files say. Raises HprofError for input that cannot be read or mixed, and for an `out` that already holds something
    unless `force`.
    """
    from profiler.importers.combine import SourceFile

    wanted = [one if isinstance(one, TraceInput) else TraceInput(one) for one in traces]
    if not wanted:
        raise HprofError("nothing to import: give a trace file, or arms as --arm NAME=FILE.")
    out = out or Path(DEFAULT_TRACES) / without_ending(wanted[0].path.name)
    sources = []
    for one in wanted:
        imported = read_file(one.path, kind, replace(options or ImportOptions(), arm=one.arm))
        if one.cut is not None:
            imported = one.cut(imported)
        # Of several files each is an arm, unless its own passes say more.
        passes = imported.tables.get("passes")
        says_more = passes is not None and passes.num_rows > 0 and imported.default_arm is None
        named = one.arm or (None if len(wanted) == 1 or says_more else without_ending(one.path.name))
        file_name, arm = readable(one.path.name), readable(named) if named else None
        sources.append(SourceFile(file_name, _size(one.path), arm, imported))
    _check_one_source(sources)
    faults = _faults_of_copies([(one.path, _arms_of(source)) for one, source in zip(wanted, sources, strict=True)])
    warnings = _same_names([source.arm for one, source in zip(wanted, sources, strict=True) if one.arm is None])
    return write_capture(sources, out, argv, force=force, known=known, warnings=warnings, faults=faults)


def write_capture(
    sources: Sequence[SourceFile],
    out: str | os.PathLike[str],
    argv: Sequence[str],
    *,
    force: bool = False,
    known: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
    faults: Sequence[str] = (),
) -> str:
    """Write what was read as one capture at `out`; gives its address.

    warnings, faults: of all sources together, as `Imported` has them of one; faults are warnings as well. The other
    parameters as for `import_files`.
    """
    from profiler.importers.combine import combine, manifest_fields
    from profiler.storage.writer import new_capture

    combined = combine(sources)
    fields = manifest_fields(sources, warnings, faults)
    writer = new_capture(out, force=force, at_once=True, argv=list(argv), **_with_known(fields, known or {}))
    try:
        _write(writer, combined)
        writer.finish("complete")
    except BaseException:  # nothing of a half import stays, and what it was to replace does
        writer.abandon()
        raise
    return writer.path


def _with_known(fields: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(fields)
    for name, value in known.items():
        told = fields.get(name)
        merged[name] = [*value, *(told or [])] if isinstance(value, list) else {**value, **(told or {})}
    return merged


def _write(writer: CaptureWriter, combined: Sequence[Imported]) -> None:
    """All tables, cut into parts that are written side by side: arrow encodes outside of the interpreter's lock."""
    told = _told_columns([imported.tables["events"] for imported in combined if "events" in imported.tables])
    jobs = [
        (name, part.select(told) if name == "events" else part, f"file-{number:03d}-{first // _PART_ROWS:04d}")
        for number, imported in enumerate(combined)
        for name, table in imported.tables.items()
        for first in range(0, table.num_rows, _PART_ROWS)
        for part in [table.slice(first, _PART_ROWS)]
    ]
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(lambda job: writer.write_part(*job), jobs):
            pass


def _told_columns(tables: Sequence[pa.Table]) -> list[str]:
    """The columns in which any row has a value. The others are not stored, and read as null all the same."""
    names = tables[0].column_names if tables else []
    return [name for name in names if any(table[name].null_count < table.num_rows for table in tables)]


def _same_names(arms: Sequence[str | None]) -> list[str]:
    """A warning for each name that several files gave their arm: off/trace.json and on/trace.json."""
    return [
        f"{n} files are named {arm!r} and count as boots of one arm; if they are arms, name them with --arm NAME=FILE."
        for arm, n in Counter(arms).items()
        if arm is not None and n > 1
    ]


def _size(path: Path) -> int:
    """Bytes of the file, or of the files in the folder; a link that leads nowhere has none."""
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _arms_of(source: SourceFile) -> set[str | None]:
    """The arms of its passes; None of a file that is of no arm."""
    passes = source.imported.tables.get("passes")
    own = set() if source.arm is not None or passes is None else set(passes["arm"].to_pylist())
    return own or {source.arm}


def _faults_of_copies(files: Sequence[tuple[Path, set[str | None]]]) -> list[str]:
    """A sentence for each two arms that are one file, or a file and its copy, whose ratio judges nothing.

    Raises HprofError where they are of one arm: they would count as processes that agree with each other.
    """
    found: dict[tuple[str, str], str] = {}
    for before, after in same_content([path for path, _ in files]):
        (earlier, arms), (path, others) = files[before], files[after]
        is_file = path.resolve() == earlier.resolve()
        if shared := arms & others:
            arm = min(shared, key=str)
            told = "" if arm is None else f" for arm {arm!r}"
            why = f"is given twice{told}" if is_file else f"holds the same bytes as {earlier}, given{told} too"
            raise HprofError(f"{path} {why}, and a file is one process: give it once, or another process's file.")
        of = path.name if is_file else f"{earlier.name} and {path.name}, which hold the same bytes"
        pair = (listed(sorted(map(str, arms))), listed(sorted(map(str, others))))
        told = f"{pair[0]} and {pair[1]} were read from {of}: one trace beside itself, whose ratio judges nothing."
        found.setdefault(pair, readable(told))
    return list(found.values())


def _check_one_source(sources: Sequence[SourceFile]) -> None:
    kinds = {source.imported.source: source.file_name for source in sources}
    if len(kinds) > 1:
        told = listed([f"{name} ({kind})" for kind, name in kinds.items()])
        raise HprofError(f"one capture holds traces of one tool, not {told}; import them into a capture each.")
