"""Opens a capture: its manifest and its tables, whoever wrote them and however the writing ended."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc

from executor.errors import HprofError
from profiler.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest
from profiler.schema import TABLES
from profiler.storage.compact import is_gathered
from profiler.storage.parts import ImpossibleSizes, StoredRows, count_rows, part_names, read_parts
from profiler.storage.store import Store

if TYPE_CHECKING:
    import pandas as pd


class Capture:
    """One capture, read lazily. Tables are read on each call and not kept: the caller decides what to cache.

    In hprof's own captures a part counts only when the `passes` part of the same name exists, which is
    written last; so an interrupted capture shows completed passes alone.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._store = store
        self.manifest = manifest
        self._impossible = ImpossibleSizes()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open the capture at a folder or fsspec URL. Raises HprofError where there is none."""
        store = Store(path)
        if not store.exists(MANIFEST_NAME):
            raise HprofError(_why_none(store))
        data = store.read(MANIFEST_NAME, MAX_MANIFEST_BYTES)
        return cls(store, Manifest.from_json(data, store.where(MANIFEST_NAME)))

    @property
    def path(self) -> str:
        """The capture's address."""
        return self._store.where()

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.path.rstrip("/").rsplit("/", 1)[-1]

    @property
    def warnings(self) -> list[str]:
        """The manifest's warnings, and what reading the capture has added to them."""
        return [*self.manifest.warnings, *self._state_warnings, *self._size_warnings()]

    def table(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        pass_ids: Collection[int] | None = None,
    ) -> pa.Table:
        """Rows of one table, in the schema's types; empty, with the schema, where the capture has none.

        columns: read only these. pass_ids: only these passes' rows, skipping parts that hold none of them.
        filters: an arrow expression over columns of the schema, applied part by part.
        """
        found = list(self.tables(name, columns, filters, pass_ids))
        if found:
            return pa.concat_tables(found).unify_dictionaries()
        return TABLES[name].empty_table().select(columns or TABLES[name].names)

    def tables(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        pass_ids: Collection[int] | None = None,
    ) -> Iterator[pa.Table]:
        """As `table`, one part after the other; a part of hprof's own captures holds one whole pass."""
        if name not in TABLES:
            raise HprofError(f"there is no table '{name}'; the tables are {', '.join(TABLES)}.")
        if columns is not None and (unknown := set(columns) - set(TABLES[name].names)):
            raise HprofError(f"the table '{name}' has no column {sorted(unknown)}; see docs/trace-schema.md.")
        wanted = list(columns) if columns is not None else TABLES[name].names
        return read_parts(self._store, name, self._parts(name), wanted, filters, pass_ids, self._impossible)

    def rows(self, name: str, pass_ids: Collection[int] | None = None) -> StoredRows:
        """The rows of `table`, to be read by number."""
        return StoredRows(self._store, name, self._parts(name), pass_ids)

    def frame(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        pass_ids: Collection[int] | None = None,
    ) -> pd.DataFrame:
        """`table` as a pandas frame; text labels are categoricals."""
        frame: pd.DataFrame = self.table(name, columns, filters, pass_ids).to_pandas()
        return frame

    @cached_property
    def passes(self) -> pd.DataFrame:
        """The `passes` table, in the order of the run."""
        return self.frame("passes").sort_values(["order", "pass_id"], ignore_index=True)

    @cached_property
    def n_passes(self) -> int:
        """How many passes it holds, warm-ups too; the parts' footers are read, not their rows."""
        return self.n_rows("passes")

    def n_rows(self, name: str) -> int:
        """How many rows a table has, of all passes; the parts' footers are read, not their rows."""
        return count_rows(self._store, name, self._parts(name))

    def _size_warnings(self) -> list[str]:
        number = self._impossible.total
        what = "Sizes in its tables that are negative, or more than any memory holds, count as unknown"
        return [f"{what}: {number:,}."] if number else []

    def _parts(self, table_name: str) -> list[str]:
        parts = part_names(self._store, table_name)
        if self.manifest.source != "hprof":
            return parts
        if self.manifest.gathered:
            return [part for part in parts if is_gathered(part)]
        return [part for part in parts if part in self._committed]

    @cached_property
    def _committed(self) -> frozenset[str]:
        parts = part_names(self._store, "passes")
        return frozenset(part for part in parts if not is_gathered(part))

    @cached_property
    def _state_warnings(self) -> list[str]:
        state = self.manifest.state
        if state == "complete":
            return []
        what = "was interrupted" if state == "interrupted" else "is still running, or was killed"
        n_passes = self.n_passes
        return [f"The capture {what}; it holds {n_passes} completed pass{'' if n_passes == 1 else 'es'}."]


@dataclass(frozen=True, slots=True)
class CaptureSummary:
    """One line of `hprof list`. `problem` says why the capture cannot be read, else null."""

    name: str
    path: str
    state: str | None
    source: str | None
    model: str | None
    arms: list[str]
    created_utc: str | None
    n_passes: int | None
    problem: str | None = None


def list_captures(root: str | os.PathLike[str]) -> list[CaptureSummary]:
    """The captures directly inside `root` (a folder or fsspec URL), newest first."""
    store = Store(root)
    if not store.exists():
        raise HprofError(f"{store.where()} does not exist; name the folder that holds the captures.")
    if store.is_local and not store.is_folder():
        raise HprofError(f"{store.where()} is no folder; name the folder that holds the captures.")
    found = [_summary(store.where(name), name) for name in store.entries() if store.exists(f"{name}/{MANIFEST_NAME}")]
    return sorted(found, key=lambda s: s.created_utc or "", reverse=True)


def expand_captures(paths: Sequence[str]) -> list[str]:
    """The addresses of captures: those given, and in place of a folder that is none itself, those inside it by name."""
    return [found for path in paths for found in _inside(path)]


def _inside(path: str) -> list[str]:
    store = Store(path)
    if store.exists(MANIFEST_NAME):
        return [path]
    names = [name for name in store.entries() if store.exists(f"{name}/{MANIFEST_NAME}")]
    return [store.where(name) for name in names] or [path]


def _summary(path: str, name: str) -> CaptureSummary:
    try:
        capture = Capture.open(path)
        n_passes = capture.n_passes
    except HprofError as error:
        return CaptureSummary(name, path, None, None, None, [], None, None, problem=str(error))
    manifest = capture.manifest
    model = manifest.model.get("name")
    return CaptureSummary(
        name=name,
        path=path,
        state=manifest.state,
        source=manifest.source,
        model=str(model) if model is not None else None,
        arms=[arm.name for arm in manifest.arms],
        created_utc=manifest.created_utc or None,
        n_passes=n_passes,
    )


def _why_none(store: Store) -> str:
    if not store.exists():
        return f"{store.where()} does not exist; `hprof list` shows the captures in a folder."
    return (
        f"{store.where()} is no capture (it holds no {MANIFEST_NAME}); "
        "turn another tool's trace into one with `hprof import`."
    )
