"""Writes a capture so that killing the process at any instant loses at most the pass under way.

writer = new_capture("traces/mine", source="hprof", argv=sys.argv)
writer.plan_pass(0, PassKey(arm="off", n_ubatch=512, ...))
writer.record_pass(0, session.run_pass(job))
writer.finish("complete")
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from executor.errors import HprofError
from executor.passes import PassResult
from executor.version import __version__
from profiler.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, State
from profiler.schema import TABLES
from profiler.storage import compact
from profiler.storage.compact import parquet_options, stored_schema
from profiler.storage.parts import mark_of, part_names
from profiler.storage.place import ELSEWHERE, claim
from profiler.storage.store import Store

ROW_GROUP_ROWS: Final = 1 << 18  # small enough to skip by statistics, large enough to compress
_TIMES: Final = ("t_start", "t_end", "t_issued")


@dataclass(frozen=True, slots=True)
class PassKey:
    """What a pass was asked to do; with a PassResult it makes one row of `passes`."""

    arm: str
    n_ubatch: int | None = None
    n_depth: int | None = None
    n_prompt: int | None = None
    n_gen: int | None = None
    repetition: int | None = None
    order: int | None = None  # position in the run, over all arms
    boot: int | None = None
    warmup: bool = False


class CaptureWriter:
    """Keeps the passes of a run in one capture, and writes what importers read.

    Refuses a path that already holds a capture unless `force`, which replaces it: the new capture is in place from its
    first measured pass on (the warm-ups before it come with it), or with `at_once` when it is finished (an import), by
    the renaming of its manifest. Until then what was there stays as it was, and nothing is there that reads as a
    capture. `abandon` takes the new one back.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        manifest: Manifest,
        *,
        force: bool = False,
        at_once: bool = False,
    ) -> None:
        self._store = Store(path)
        self._planned: dict[int, tuple[PassKey, int]] = {}
        self._rows: Counter[str] = Counter()
        self._parts: set[str] = set()
        self._is_whole = True  # all parts are written here, so that their rows are known
        self._made_folder = not self._store.exists()
        self._is_new = claim(self._store, force=force)
        self._at_once = at_once
        self.is_in_place = self._is_new and not at_once
        """Whether a reader finds this capture at the path."""
        if not self.is_in_place:
            manifest = manifest.with_changes(parts=f"new-{uuid4().hex[:8]}-")
        self.manifest = manifest
        self._prefix = manifest.parts
        if self.is_in_place:
            self._store.write(MANIFEST_NAME, manifest.to_json(), is_new=True)
        elif not at_once:
            self._store.write(_pending_name(manifest.run_id), manifest.to_json())

    @classmethod
    def attach(cls, path: str | os.PathLike[str], *, prefix: str, run_id: str | None = None) -> CaptureWriter:
        """Add parts to an unfinished capture from another process; `prefix` must be its own, pass ids too.

        `run_id`: the capture's, which finds it also where it is not yet in place.
        """
        writer = cls.__new__(cls)
        writer._store, writer._planned = Store(path), {}
        writer._rows, writer._parts, writer._is_whole = Counter(), set(), False
        writer._made_folder = writer._is_new = writer._at_once = False
        pending = _pending_name(run_id or "")
        writer.is_in_place = not (run_id and writer._store.exists(pending))
        name = MANIFEST_NAME if writer.is_in_place else pending
        writer.manifest = Manifest.from_json(writer._store.read(name, MAX_MANIFEST_BYTES), writer._store.where(name))
        writer._prefix = writer.manifest.parts + prefix
        if writer.manifest.gathered:
            raise HprofError(f"{writer.path} is complete; start another capture.")
        return writer

    @property
    def path(self) -> str:
        """The capture's address."""
        return self._store.where()

    def write_part(self, table_name: str, rows: pa.Table | Mapping[str, object], part: str) -> None:
        """Write `<table_name>/<part>.parquet`: cast to the schema; columns that are missing read as null.

        `rows` is a table, or columns by name (lists, numpy or arrow arrays). Raises HprofError when the disk
        says no, ValueError for a column that the schema does not have.
        """
        table = _given(table_name, rows)
        table = table.cast(stored_schema([table]))
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=ROW_GROUP_ROWS, **parquet_options(table.schema))
        name = f"{table_name}/{self._prefix}{part}.parquet"
        self._store.write(name, sink.getvalue())
        self._parts.add(name)
        self._rows[name] = table.num_rows
        if table_name == "passes" and not self._at_once and _holds_measured(table):
            self._put_in_place()

    def plan_pass(self, pass_id: int, key: PassKey, *, zero_ns: int = 0) -> None:
        """Say what pass `pass_id` is about to do; needed before it is recorded.

        `zero_ns`: where the clock that its times are read from begins, for clocks that begin anew each pass.
        """
        self._planned[pass_id] = (key, zero_ns)

    def record_pass(self, pass_id: int, result: PassResult, kernels: pa.Table | None = None) -> None:
        """Write a finished pass. Its `passes` part goes last: readers ignore events without one.

        `kernels` are further rows of `events` on the clock of the result.
        """
        key, shift_ns = self._planned.pop(pass_id)
        self._check_ours()
        part = _part_name(pass_id)
        for name in ("events", "ubatches", "experts", "ordering"):
            records = getattr(result, name)
            tables = [conform(name, self._columns(name, pass_id, records, shift_ns))] if records else []
            if name == "events" and kernels is not None and kernels.num_rows:
                tables.append(_moved(kernels, pass_id, shift_ns))
            if tables:
                self.write_part(name, pa.concat_tables(tables).unify_dictionaries(), part)
        self._commit(pass_id, asdict(key), _result_columns(result), shift_ns)

    def add_pass_row(self, pass_id: int, key: PassKey, **figures: Any) -> None:
        """Write the row of a pass that has no PassResult; figures that are not given are null."""
        self._check_ours()
        self._commit(pass_id, asdict(key), figures, 0)

    def update_manifest(self, **changes: Any) -> None:
        """Replace fields of the manifest, in memory and in the capture."""
        self._check_ours()
        self.manifest = self.manifest.with_changes(**changes)
        if self.is_in_place:
            self._store.write(MANIFEST_NAME, self.manifest.to_json())
        elif not self._at_once:
            self._store.write(_pending_name(self.manifest.run_id), self.manifest.to_json())

    @property
    def has_passes(self) -> bool:
        """Whether a reader finds passes of this capture, written by whichever process."""
        return self.is_in_place and bool(part_names(self._store, "passes", self.manifest.parts))

    def finish(self, state: State = "complete") -> None:
        """Set the final state; a complete run's parts are gathered, so that they read faster.

        One that is not complete and holds no pass that a reader finds (of one that was to replace another: no measured
        pass) is taken back, unless it is another process's to take back.
        """
        self._notice_place()
        if state != "complete" and not self.has_passes:
            if self._is_whole:
                self.abandon()
            self.manifest = self.manifest.with_changes(state=state)
            return
        if self.manifest.source != "hprof":
            rows = self._promised_rows() if state == "complete" and self._is_whole else {}
            self.update_manifest(state=state, rows=rows)
            self._put_in_place()
            return
        self._put_in_place()
        if state != "complete" or self.manifest.gathered:
            self.update_manifest(state=state)
            return
        self._check_ours()
        mark = self.manifest.parts
        try:
            rows = compact.gather(self._store, mark)
        except HprofError as error:
            # The passes are whole as they are: a disk too full for a second copy must not spoil them.
            compact.remove(self._store, mark, gathered=True)
            reason = f"The parts could not be gathered, so reading takes longer: {error}"
            self.update_manifest(state=state, warnings=[*self.manifest.warnings, reason])
            return
        self.update_manifest(state=state, gathered=True, rows=rows)
        compact.remove(self._store, mark, gathered=False)

    def abandon(self) -> None:
        """Take back what was written: a capture that this one was to replace stays, and a new folder goes."""
        self._notice_place()
        self._check_ours()
        name = MANIFEST_NAME if self.is_in_place else _pending_name(self.manifest.run_id)
        self.is_in_place = False
        _remove_found(self._store, [name])
        for table in TABLES:
            parts = part_names(self._store, table, self.manifest.parts)
            _remove_found(self._store, [f"{table}/{part}.parquet" for part in parts])
        self._store.remove_empty([*TABLES, *([""] if self._made_folder else [])])

    def _notice_place(self) -> None:
        """An interrupt may have come between the renaming of the manifest and the note of it here."""
        if not self.is_in_place and self._store.exists(MANIFEST_NAME):
            with suppress(HprofError):  # one that this version cannot read is not ours
                self.is_in_place = self._found_manifest().run_id == self.manifest.run_id

    def _found_manifest(self) -> Manifest:
        stored = self._store.read(MANIFEST_NAME, MAX_MANIFEST_BYTES)
        return Manifest.from_json(stored, self._store.where(MANIFEST_NAME))

    def _promised_rows(self) -> dict[str, int]:
        counted = {table: sum(n for name, n in self._rows.items() if name.startswith(f"{table}/")) for table in TABLES}
        return {table: number for table, number in counted.items() if number}

    def _put_in_place(self) -> None:
        """From now on readers find this capture, and the parts of the one before it go."""
        if self.is_in_place:
            return
        found = {f"{table}/{part}.parquet" for table in TABLES for part in part_names(self._store, table)}
        if not self._parts <= found:
            raise HprofError(
                f"{self.path} was written to by another run meanwhile; run again into another folder ({ELSEWHERE})."
            )
        self._store.write(MANIFEST_NAME, self.manifest.to_json(), is_new=self._is_new)
        self.is_in_place = True
        with suppress(HprofError):  # what cannot be removed is nobody's, and read by nobody
            if not self._at_once:
                self._store.remove(_pending_name(self.manifest.run_id))
            _remove_others(self._store, self.manifest.parts)

    def _check_ours(self) -> None:
        """Another run may have replaced the capture (`--force`): what is written now would mix with its passes.

        What was written since goes then, as the other run no longer looks for it.
        """
        if not self.is_in_place:
            return
        found = self._found_manifest()
        if found.run_id != self.manifest.run_id:
            if found.parts != self.manifest.parts:
                _remove_found(self._store, self._parts)
            raise HprofError(
                f"{self.path} was replaced by another run with --force, and this one's passes with it; "
                f"run again into another folder ({ELSEWHERE})."
            )

    def _commit(self, pass_id: int, key: Mapping[str, Any], figures: Mapping[str, Any], shift_ns: int) -> None:
        row = {"pass_id": pass_id, **key, **figures}
        for name in _TIMES:
            if row.get(name) is not None:
                row[name] += shift_ns
        whole = conform("passes", {name: [value] for name, value in row.items()})
        self.write_part("passes", whole, _part_name(pass_id))

    def _columns(self, table_name: str, pass_id: int, records: Sequence[object], shift_ns: int) -> dict[str, Any]:
        names = [name for name in TABLES[table_name].names if hasattr(records[0], name)]
        columns: dict[str, Any] = {name: list(map(attrgetter(name), records)) for name in names}
        for name in _TIMES:
            if name in columns and shift_ns:
                columns[name] = np.array(columns[name], np.int64) + shift_ns
        return columns | {"pass_id": pa.repeat(pass_id, len(records))}


def new_capture(
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    at_once: bool = False,
    **manifest_fields: Any,
) -> CaptureWriter:
    """Start a capture at `path`; `manifest_fields` are Manifest's, version and time are filled in."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    defaults = {"hprof_version": __version__, "created_utc": now, "run_id": uuid4().hex, "state": "running"}
    manifest = Manifest(**(defaults | manifest_fields))
    return CaptureWriter(path, manifest, force=force, at_once=at_once)


def conform(table_name: str, rows: pa.Table | Mapping[str, object]) -> pa.Table:
    """`rows` as a table of exactly the schema's columns and types; missing columns are null."""
    given = _given(table_name, rows)
    arrays = [
        given[field.name] if field.name in given.column_names else pa.nulls(given.num_rows, field.type)
        for field in TABLES[table_name]
    ]
    return pa.Table.from_arrays(arrays, schema=TABLES[table_name])


def _given(table_name: str, rows: pa.Table | Mapping[str, object]) -> pa.Table:
    """The columns that `rows` has, in the schema's order and types."""
    schema = TABLES[table_name]
    names = rows.column_names if isinstance(rows, pa.Table) else list(rows)
    if unknown := set(names) - set(schema.names):
        raise ValueError(f"table '{table_name}' has no column {sorted(unknown)}")
    fields = [field for field in schema if field.name in names]
    return pa.Table.from_arrays([_array(rows[f.name], f.type) for f in fields], schema=pa.schema(fields))


def _array(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.ChunkedArray | pa.Array):
        return values if values.type == kind else values.cast(kind)
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode().cast(kind)
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        names = [field.name for field in kind.value_type]
        values = [row and [dict(zip(names, item, strict=True)) for item in row] for row in values]  # null stays null
    return pa.array(values, kind)


def _moved(events: pa.Table, pass_id: int, shift_ns: int) -> pa.Table:
    columns: dict[str, Any] = {name: events[name] for name in events.column_names}
    columns |= {name: pc.add(events[name], shift_ns) for name in _TIMES if name in columns}
    return conform("events", columns | {"pass_id": pa.repeat(pa.scalar(pass_id, pa.int32()), events.num_rows)})


def _result_columns(result: PassResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in TABLES["passes"].names if hasattr(result, name)}


def _part_name(pass_id: int) -> str:
    return f"pass-{pass_id:06d}"


def _pending_name(run_id: str) -> str:
    """Of the manifest of a capture that is not in place yet, for the other processes of its run."""
    return f".{MANIFEST_NAME}.{run_id}.tmp"


def _holds_measured(passes: pa.Table) -> bool:
    """Whether any of these rows of `passes` is of a measured pass, not of a warm-up."""
    if "warmup" not in passes.column_names:
        return bool(passes.num_rows)
    return not pc.all(pc.fill_null(passes["warmup"], False), min_count=0).as_py()


def _remove_found(store: Store, names: Iterable[str]) -> None:
    """Remove those of these files that are there; what cannot be removed is nobody's, and read by nobody."""
    for name in names:
        with suppress(HprofError):
            if store.exists(name):
                store.remove(name)


def _remove_others(store: Store, mark: str) -> None:
    """Remove the parts of all captures but the one with this mark; other people's files stay."""
    for table in TABLES:
        for name in store.entries(table):
            if name.endswith(".tmp") or (name.endswith(".parquet") and mark_of(name) != mark):
                store.remove(f"{table}/{name}")
