"""Writes a capture so that killing the process at any instant loses at most the pass under way.

writer = new_capture("traces/mine", source="hprof", argv=sys.argv)
writer.plan_pass(0, PassKey(arm="off", n_ubatch=512, ...))
writer.record_pass(0, session.run_pass(job))
writer.finish("complete")
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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
from profiler.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, State, is_manifest
from profiler.schema import TABLES
from profiler.storage import compact
from profiler.storage.compact import parquet_options, stored_schema
from profiler.storage.store import Store, is_under_way

ROW_GROUP_ROWS: Final = 1 << 18  # small enough to skip by statistics, large enough to compress
_TIMES: Final = ("t_start", "t_end")


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
    """The recorder of one capture (`executor.passes.Recorder`), and the writer that importers use.

    `origin_ns` is the clock reading at the capture's start; recorded times are stored relative to it.
    Refuses a path that already holds a capture unless `force`, which replaces it.
    """

    def __init__(
        self, path: str | os.PathLike[str], manifest: Manifest, *, force: bool = False, origin_ns: int = 0
    ) -> None:
        self._store = Store(path)
        self._origin_ns = origin_ns
        self._prefix = ""
        self._planned: dict[int, tuple[PassKey, int]] = {}
        is_new = _claim(self._store, force=force)
        self.manifest = manifest
        self._store.write(MANIFEST_NAME, manifest.to_json(), is_new=is_new)

    @classmethod
    def attach(cls, path: str | os.PathLike[str], *, prefix: str, origin_ns: int = 0) -> CaptureWriter:
        """Add parts to an unfinished capture from another process; `prefix` must be its own, pass ids too."""
        writer = cls.__new__(cls)
        writer._store, writer._origin_ns, writer._prefix, writer._planned = Store(path), origin_ns, prefix, {}
        writer.manifest = Manifest.from_json(
            writer._store.read(MANIFEST_NAME, MAX_MANIFEST_BYTES), writer._store.where(MANIFEST_NAME)
        )
        if writer.manifest.gathered:
            raise HprofError(f"{writer.path} is complete; start another capture.")
        return writer

    @property
    def path(self) -> str:
        """The capture's address."""
        return self._store.where()

    def write_part(self, table_name: str, rows: pa.Table | Mapping[str, Any], part: str) -> None:
        """Write `<table_name>/<part>.parquet`: cast to the schema; columns that are missing read as null.

        `rows` is a table, or columns by name (lists, numpy or arrow arrays). Raises HprofError when the disk
        says no, ValueError for a column that the schema does not have.
        """
        table = _given(table_name, rows)
        table = table.cast(stored_schema([table]))
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=ROW_GROUP_ROWS, **parquet_options(table.schema))
        self._store.write(f"{table_name}/{self._prefix}{part}.parquet", sink.getvalue())

    def plan_pass(self, pass_id: int, key: PassKey, *, zero_ns: int = 0) -> None:
        """Say what pass `pass_id` is about to do; needed before it is recorded.

        `zero_ns`: where the clock that its times are read from begins, for clocks that begin anew each pass.
        """
        self._planned[pass_id] = (key, zero_ns - self._origin_ns)

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
        self._commit(pass_id, asdict(key), figures, -self._origin_ns)

    def update_manifest(self, **changes: Any) -> None:
        """Replace fields of the manifest, in memory and in the capture."""
        self._check_ours()
        self.manifest = self.manifest.with_changes(**changes)
        self._store.write(MANIFEST_NAME, self.manifest.to_json())

    def finish(self, state: State = "complete") -> None:
        """Set the final state; a complete run's parts are gathered, so that they read faster."""
        if state != "complete" or self.manifest.source != "hprof" or self.manifest.gathered:
            self.update_manifest(state=state)
            return
        self._check_ours()
        try:
            compact.gather(self._store)
        except HprofError as error:
            # The passes are whole as they are: a disk too full for a second copy must not spoil them.
            compact.remove(self._store, gathered=True)
            reason = f"The parts could not be gathered, so reading takes longer: {error}"
            self.update_manifest(state=state, warnings=[*self.manifest.warnings, reason])
            return
        self.update_manifest(state=state, gathered=True)
        compact.remove(self._store, gathered=False)

    def abandon(self) -> None:
        """Take back a capture to which nothing was written: its folder is free again."""
        self._store.remove(MANIFEST_NAME)

    def _check_ours(self) -> None:
        """Another run may have replaced the capture (`--force`): what is written now would mix with its passes."""
        found = Manifest.from_json(
            self._store.read(MANIFEST_NAME, MAX_MANIFEST_BYTES), self._store.where(MANIFEST_NAME)
        )
        if found.run_id != self.manifest.run_id:
            raise HprofError(
                f"{self.path} was replaced by another run with --force, and this one's passes with it; "
                "run again with another -o."
            )

    def _commit(self, pass_id: int, key: Mapping[str, Any], figures: Mapping[str, Any], shift_ns: int) -> None:
        row = {"pass_id": pass_id, **key, **figures}
        for name in _TIMES:
            if row.get(name) is not None:
                row[name] += shift_ns
        whole = conform("passes", {name: [value] for name, value in row.items()})
        self.write_part("passes", whole, _part_name(pass_id))

    def _columns(self, table_name: str, pass_id: int, records: Sequence[Any], shift_ns: int) -> dict[str, Any]:
        names = [name for name in TABLES[table_name].names if hasattr(records[0], name)]
        columns: dict[str, Any] = {name: list(map(attrgetter(name), records)) for name in names}
        for name in _TIMES:
            if name in columns and shift_ns:
                columns[name] = np.array(columns[name], np.int64) + shift_ns
        return columns | {"pass_id": pa.repeat(pass_id, len(records))}


def new_capture(
    path: str | os.PathLike[str], *, force: bool = False, origin_ns: int = 0, **manifest_fields: Any
) -> CaptureWriter:
    """Start a capture at `path`; `manifest_fields` are Manifest's, version and time are filled in."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    defaults = {"hprof_version": __version__, "created_utc": now, "run_id": uuid4().hex, "state": "running"}
    return CaptureWriter(path, Manifest(**(defaults | manifest_fields)), force=force, origin_ns=origin_ns)


def conform(table_name: str, rows: pa.Table | Mapping[str, Any]) -> pa.Table:
    """`rows` as a table of exactly the schema's columns and types; missing columns are null."""
    given = _given(table_name, rows)
    arrays = [
        given[field.name] if field.name in given.column_names else pa.nulls(given.num_rows, field.type)
        for field in TABLES[table_name]
    ]
    return pa.Table.from_arrays(arrays, schema=TABLES[table_name])


def _given(table_name: str, rows: pa.Table | Mapping[str, Any]) -> pa.Table:
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
        values = [[dict(zip(names, item, strict=True)) for item in row] for row in values]
    return pa.array(values, kind)


def _moved(events: pa.Table, pass_id: int, shift_ns: int) -> pa.Table:
    columns: dict[str, Any] = {name: events[name] for name in events.column_names}
    columns |= {name: pc.add(events[name], shift_ns) for name in _TIMES}
    return conform("events", columns | {"pass_id": pa.repeat(pa.scalar(pass_id, pa.int32()), events.num_rows)})


def _result_columns(result: PassResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in TABLES["passes"].names if hasattr(result, name)}


def _part_name(pass_id: int) -> str:
    return f"pass-{pass_id:06d}"


def _claim(store: Store, *, force: bool) -> bool:
    """Make the folder ours: empty, or a capture that `force` allows to replace; other people's files stay.

    Whether there was no capture.
    """
    if not store.is_folder() and store.exists():
        raise HprofError(f"{store.where()} is a file, where a capture needs a folder; choose another -o.")
    entries = [name for name in store.entries() if not is_under_way(name)]
    if not entries:
        return True
    if MANIFEST_NAME not in entries or not is_manifest(store.read(MANIFEST_NAME, MAX_MANIFEST_BYTES)):
        raise HprofError(f"{store.where()} holds other files and no capture; choose another folder with -o.")
    if not force:
        raise HprofError(f"{store.where()} already holds a capture; choose another -o or add --force to replace it.")
    # Marked first, so that a kill while the old parts go leaves nothing that looks whole.
    store.write(MANIFEST_NAME, Manifest(state="interrupted").to_json())
    for table in ("passes", *(name for name in TABLES if name != "passes")):
        for name in store.entries(table):
            if name.endswith((".parquet", ".tmp")):
                store.remove(f"{table}/{name}")
    return False
