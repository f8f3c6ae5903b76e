"""Opens a capture: its manifest and its tables, whoever wrote them and however the writing ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from executor.errors import HprofError, first_line
from profiler.facts import processors
from profiler.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest
from profiler.plain_text import readable
from profiler.schema import TABLES
from profiler.storage.parts import StoredRows, count_rows, is_gathered, part_names, read_parts
from profiler.storage.possible_sizes import ImpossibleSizes
from profiler.storage.store import Store

if TYPE_CHECKING:
    import pandas as pd

Result = TypeVar("Result")
_MOST_NAMED: Final = 3  # captures of a folder that was opened as one


class Capture:
    """One capture, read lazily. Tables are read on each call and not kept: the caller decides what to cache.

    In hprof's own captures a part counts only when the `passes` part of the same name exists, which is
    written last; so an interrupted capture shows completed passes alone. One that is still written, or that is
    gathered meanwhile, is looked at anew for each table. Reading raises HprofError where rows that the manifest
    promises are missing, and where another capture has taken this one's place.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._store = store
        self.manifest = manifest
        self._impossible = ImpossibleSizes()
        self._seen: tuple[int, ...] | None = None  # what the manifest's file looked like when it was read

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open the capture at a folder or fsspec URL. Raises HprofError where there is none."""
        store = Store(path)
        if not store.exists(MANIFEST_NAME):
            raise HprofError(_why_none(store))
        signature = store.signature(MANIFEST_NAME)
        data = store.read(MANIFEST_NAME, MAX_MANIFEST_BYTES)
        capture = cls(store, Manifest.from_json(data, store.where(MANIFEST_NAME)))
        capture._seen = signature
        return capture

    @property
    def path(self) -> str:
        """The capture's address."""
        return self._store.where()

    @property
    def name(self) -> str:
        """The last part of the address."""
        return readable(self.path.rstrip("/").rsplit("/", 1)[-1])

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
        found = self._again_if_changed(lambda: list(self.tables(name, columns, filters, pass_ids)))
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
        """As `table`, one part after the other; a part of hprof's own captures holds one whole pass.

        Raises HprofError where the parts are gathered while it reads.
        """
        if name not in TABLES:
            raise HprofError(f"there is no table '{name}'; the tables are {', '.join(TABLES)}.")
        if columns is not None and (unknown := set(columns) - set(TABLES[name].names)):
            raise HprofError(f"the table '{name}' has no column {sorted(unknown)}; see docs/trace-schema.md.")
        wanted = list(columns) if columns is not None else TABLES[name].names
        parts = self._parts(name)
        return read_parts(
            self._store, name, parts, wanted, filters, pass_ids, self._impossible, self.manifest.rows.get(name, 0)
        )

    def rows(self, name: str, pass_ids: Collection[int] | None = None) -> StoredRows:
        """The rows of `table`, to be read by number."""
        return self._again_if_changed(
            lambda: StoredRows(self._store, name, self._parts(name), pass_ids, self.manifest.rows.get(name, 0))
        )

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
        return self._again_if_changed(
            lambda: count_rows(self._store, name, self._parts(name), self.manifest.rows.get(name, 0))
        )

    def _size_warnings(self) -> list[str]:
        number = self._impossible.total
        what = "Sizes in its tables that are negative, or more than any memory holds, count as unknown"
        return [f"{what}: {number:,}."] if number else []

    def _parts(self, table_name: str) -> list[str]:
        self._look_again()
        parts = part_names(self._store, table_name, self.manifest.parts)
        if self.manifest.source != "hprof":
            return parts
        if self.manifest.gathered:
            return [part for part in parts if is_gathered(part)]
        return [part for part in parts if part in self._committed]

    @cached_property
    def _committed(self) -> frozenset[str]:
        """Of a capture that may still grow, the passes that all its tables are read for."""
        parts = part_names(self._store, "passes", self.manifest.parts)
        return frozenset(part for part in parts if not is_gathered(part))

    def _look_again(self, *, at_once: bool = False) -> bool:
        """Follow the manifest as it lies there now; whether the parts have been gathered since.

        In a bucket only where the capture is still written, or `at_once`. Raises HprofError where this capture is
        gone, was replaced, or has grown since its passes were counted.
        """
        before, signature = self.manifest, self._store.signature(MANIFEST_NAME)
        if signature is None and not at_once and before.state != "running":
            return False
        if signature is not None and signature == self._seen:
            return False
        if not self._store.exists(MANIFEST_NAME):
            raise HprofError(f"{self.path} was removed while it was read; `hprof list` shows what there is.")
        now = Manifest.from_json(self._store.read(MANIFEST_NAME, MAX_MANIFEST_BYTES), self._store.where(MANIFEST_NAME))
        if (now.run_id, now.parts) != (before.run_id, before.parts):
            raise HprofError(f"{self.path} was replaced by another capture while it was read; open it again.")
        if now.gathered and not before.gathered and now.rows:
            counted = len(self.__dict__.get("_committed", ())) or now.rows.get("passes", 0)
            if counted != now.rows.get("passes", 0):
                raise HprofError(f"{self.path} has grown since it was opened, and is complete now; open it again.")
        self._seen = signature
        self.manifest = before.with_changes(state=now.state, gathered=now.gathered, rows=now.rows)
        self.__dict__.pop("_state_warnings", None)
        return now.gathered != before.gathered

    def _again_if_changed(self, read: Callable[[], Result]) -> Result:
        """What `read` gives; once more where the parts were gathered under its hands."""
        try:
            return read()
        except HprofError:
            if not self._look_again(at_once=True):
                raise
            return read()

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
    """One line of `hprof list`. `problem` says why the capture cannot be read, else None.

    `name` is fit for printing; `path` may hold bytes that are no UTF-8, as Python keeps them.
    """

    name: str
    path: str
    state: str | None
    source: str | None
    model: str | None
    arms: list[str]
    created_utc: str | None
    n_passes: int | None
    problem: str | None = None
    machine: str | None = None
    """What it was measured on, shortly: the GPUs, else the CPU; the imagined GPU and `device sim` where nothing was."""


def list_captures(root: str | os.PathLike[str]) -> list[CaptureSummary]:
    """The captures directly inside `root` (a folder or fsspec URL), newest first."""
    store = Store(root)
    if not store.exists():
        raise HprofError(f"{store.where()} does not exist; name the folder that holds the captures.")
    if store.is_local and not store.is_folder():
        raise HprofError(f"{store.where()} is no folder; name the folder that holds the captures.")
    found = [_summary(store.where(name), readable(name)) for name in store.entries() if _has_manifest(store, name)]
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


def _has_manifest(store: Store, name: str) -> bool:
    """Whether something of a manifest's name lies there, readable or not; what cannot be looked into has none."""
    try:
        return store.exists(f"{name}/{MANIFEST_NAME}")
    except HprofError:
        return False


def _summary(path: str, name: str) -> CaptureSummary:
    try:
        capture = Capture.open(path)
        n_passes = capture.n_passes
    except HprofError as error:
        return CaptureSummary(name, path, None, None, None, [], None, None, problem=str(error))
    except Exception as error:  # noqa: BLE001 - whatever one capture does must not hide the others
        problem = f"{path} cannot be read ({type(error).__name__}: {first_line(error)}); restore it, or capture again."
        return CaptureSummary(name, path, None, None, None, [], None, None, problem=problem)
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
        machine=_machine(manifest),
    )


def _machine(manifest: Manifest) -> str | None:
    if manifest.machine.get("device") != "sim":
        return next(iter(processors(manifest.machine)), None)
    imagined = manifest.machine.get("imagined_gpu")
    return f"{imagined}, device sim" if isinstance(imagined, str) and imagined else "device sim"


def _why_none(store: Store) -> str:
    if not store.exists():
        return f"{store.where()} does not exist; `hprof list` shows the captures in a folder."
    inside = [readable(name) for name in store.entries() if _has_manifest(store, name)]
    if inside:
        more = f" and {len(inside) - _MOST_NAMED} more" if len(inside) > _MOST_NAMED else ""
        return (
            f"{store.where()} is no capture but a folder that holds captures: {', '.join(inside[:_MOST_NAMED])}{more}; "
            f"open one of them, such as {store.where(inside[0])}."
        )
    return (
        f"{store.where()} is no capture (it holds no {MANIFEST_NAME}); "
        "turn another tool's trace into one with `hprof import`."
    )
