"""Which process each row of a trace belongs to, and which call of the host launched it.

A device row names its call by a correlation id, which is unique in one process alone. Traces of several ranks that
were merged into one file hold the same ids, and the same device numbers, several times. Mergers label process ids as
text ("[TP01] 4000", and "[TP01] 0" for device 0 of that rank): the text before the number keeps ranks apart. Where
nothing labels them, rows and calls of one id are paired in the order of the file.
"""

from __future__ import annotations

from functools import cached_property
from itertools import count
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from executor.arrays import Flags, Int64
from profiler.arithmetic.groups import group_by
from profiler.arithmetic.joins import distinct
from profiler.importers.absent import absent, from_arrow, is_absent, is_known, known_where
from profiler.importers.device_traces import unanswered_launches
from profiler.importers.kineto.rows import ON_HOST

_MAX_NAMES: Final = 256  # of processes, in the manifest
_MAX_NAME_CHARS: Final = 100
# What a call launches, by its name; all others launch kernels.
_CALL_WORDS: Final = {"copy": "memcpy|copy", "memset": "memset", "sync": "synchronize|waitevent"}
_WORK: Final = ("kernel", *_CALL_WORDS)


def number_processes(rows: pa.Table) -> tuple[pa.Table, dict[str, str]]:
    """Give host rows of one process one number in `process`, and those of two never the same; and number -> label.

    rows: of `rows.COLUMNS`. The number is the process's own where no other label has it, else the next free one.
    Nothing changes, and nothing has a label, where process ids are plain numbers.
    """
    host = np.flatnonzero(_is_role(rows, *ON_HOST))
    rank = rows["rank"].combine_chunks()
    code = from_arrow(rank.indices)[host]
    if is_absent(code).all():
        return rows, {}
    own = rows["process"].combine_chunks().take(pa.array(host))
    is_known = own.is_valid().to_numpy(zero_copy_only=False)
    processes = group_by({"known": is_known.astype(np.int64), "own": pc.fill_null(own, 0).to_numpy(), "rank": code})
    owns, ranks = (processes.keys[name].tolist() for name in ("own", "rank"))
    numbers: dict[int, None] = {}  # in order, and soon searched: a stranger's trace may hold 100,000 processes
    taken = set(owns)
    free = (other for other in count(1) if other not in taken)
    for number, known in zip(owns, processes.keys["known"].tolist(), strict=True):
        numbers[number if known and number not in numbers else next(free)] = None
    process = np.zeros(rows.num_rows, np.int64)
    process[host] = np.array(list(numbers), np.int64)[processes.of_row]
    is_device = np.ones(rows.num_rows, np.bool_)
    is_device[host] = False
    column = rows.schema.get_field_index("process")
    texts = rank.dictionary.to_pylist()
    told = zip(numbers, ranks, owns, strict=True)
    names = {str(n): f"{texts[r] if r >= 0 else ''} {own}".strip()[:_MAX_NAME_CHARS] for n, r, own in told}
    numbered = rows.set_column(column, rows.schema.field(column), pa.array(process, mask=is_device))
    return numbered, dict(list(names.items())[:_MAX_NAMES])


class HostCalls:
    """Each row's host call and process. rows: of `rows.COLUMNS`, after `number_processes`."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._is_api = _is_role(rows, "api")
        self.is_host: Flags = _is_role(rows, *ON_HOST)
        self._scope = _scopes(rows, self.is_host)
        self._correlation = from_arrow(rows["correlation"])
        self.n_paired = self.n_unpaired = 0  # device rows whose id several processes have: told apart, and not
        n_rows = rows.num_rows
        call = self._first_calls()
        for of_rows, calls in self._shared_ids():
            call[of_rows] = calls
        self.found: Flags = is_known(call)
        self.row: Int64 = np.where(self.found, call, np.arange(n_rows))

    def _first_calls(self) -> Int64:
        """The first call with each row's id in its scope, if any."""
        id_ = self._ids()
        calls = np.flatnonzero(self._is_api & (id_ >= 0))
        if len(calls) == 0:
            return absent(len(id_))
        calls = calls[np.argsort(id_[calls], kind="stable")]
        nearest = calls[np.minimum(np.searchsorted(id_[calls], id_), len(calls) - 1)]
        return known_where((id_[nearest] == id_) & (id_ >= 0), nearest)

    def _ids(self) -> Int64:
        """Correlation ids that say their scope too."""
        if not self._scope.any():
            return self._correlation
        values, code = distinct(self._correlation)
        is_told = (self._correlation >= 0) & is_known(self._scope)
        return known_where(is_told, np.where(is_told, self._scope, 0) * len(values) + code)

    def _shared_ids(self) -> list[tuple[Int64, Int64]]:
        """Device rows whose id calls of several processes have, with the call of each, where it can be told.

        The i-th row belongs to the i-th call of the same kind of work, where there are as many of both.
        """
        process = self._rows["process"].combine_chunks()
        if len(pc.unique(process.filter(pa.array(self._is_api)))) < 2:
            return []
        id_, (_, owner) = self._ids(), distinct(from_arrow(process))
        calls = np.flatnonzero(self._is_api & (id_ >= 0))
        pairs = group_by({"id": id_[calls], "owner": owner[calls]}).keys["id"]
        shared = np.unique(pairs[1:][pairs[1:] == pairs[:-1]])
        among = np.flatnonzero(np.isin(id_, shared) & ~(self.is_host & ~self._is_api))
        if len(shared) == 0 or self._is_api[among].all():
            return []
        groups = group_by({"id": id_[among], "work": self._work(among)})
        is_call = self._is_api[among]
        n_calls, n_rows = groups.sum(is_call), groups.sum(~is_call)
        # A group's rows one after the other: its calls in order, then its device rows.
        order = np.lexsort((~is_call, groups.of_row))
        is_paired = (n_calls == n_rows)[groups.of_row]
        of_rows = among[order][~is_call[order] & is_paired[order]]
        calls = among[order][is_call[order] & is_paired[order]]
        untold = among[~is_call & ~is_paired]
        self.n_paired, self.n_unpaired = len(of_rows), len(untold)
        return [(of_rows, calls), (untold, absent(len(untold)))]

    def _work(self, rows: Int64) -> Int64:
        """What rows do, or launch: a place in _WORK."""
        name = self._rows["name"].combine_chunks()
        of_name = np.zeros(len(name.dictionary), np.int64)
        for number, words in enumerate(_CALL_WORDS.values(), 1):
            says = pc.match_substring_regex(name.dictionary, words, ignore_case=True).to_numpy(zero_copy_only=False)
            of_name[says] = number
        role = self._rows["role"].combine_chunks()
        of_role = np.array([_WORK.index(r) if r in _WORK else 0 for r in role.dictionary.to_pylist()], np.int64)
        launched, done = of_name[name.indices.to_numpy()[rows]], of_role[role.indices.to_numpy()[rows]]
        work: Int64 = np.where(self._is_api[rows], launched, done)
        return work

    @cached_property
    def process(self) -> pa.Array:
        """The process of each row: a device row has its host call's, or the only one there is in its scope."""
        process = self._rows["process"].combine_chunks()
        of_call = process.take(pa.array(self.row))
        for scope in np.unique(self._scope).tolist():
            here = self._scope == scope
            known = process.filter(pa.array(self.is_host & here)).drop_null().unique()
            if len(known) == 1:
                of_call = pc.if_else(pa.array(here), pc.coalesce(of_call, known[0]), of_call)
        return of_call

    def launched_at(self) -> Int64:
        """When the call of each row with `found` began, in ns; a row without one has its own start."""
        starts: Int64 = self._rows["t_start"].to_numpy()[self.row]
        return starts

    def unanswered(self) -> list[str]:
        """A sentence about launches that no device row names."""
        calls = np.flatnonzero(self._is_api)
        has_work = np.zeros(len(self.row), np.bool_)
        has_work[self.row[self.found & ~self.is_host]] = True
        names = self._rows["name"].combine_chunks()
        return unanswered_launches(names.indices.to_numpy()[calls], names.dictionary.to_pylist(), has_work[calls])

    @property
    def n_bytes(self) -> pa.Array:
        """What a copy moved, from its own row or, on ROCm, from its host call; null for all other rows."""
        n_bytes = self._rows["bytes"].combine_chunks()
        n_bytes = pc.if_else(pc.less(n_bytes, 0), None, n_bytes)
        moved = _is_role(self._rows, "copy", "memset")
        return pc.if_else(pa.array(moved), pc.coalesce(n_bytes, n_bytes.take(pa.array(self.row))), None)

    @property
    def direction(self) -> pa.Array:
        """What the arguments of the row, or of its host call, say about the direction."""
        direction = self._rows["direction"].combine_chunks().cast(pa.string())
        return pc.coalesce(direction, direction.take(pa.array(self.row))).dictionary_encode()


def _is_role(rows: pa.Table, *roles: str) -> Flags:
    role = rows["role"].combine_chunks()
    is_one = np.isin(np.array(role.dictionary.to_pylist(), dtype=object), roles)
    found: NDArray[Any] = np.append(is_one, False)[role.indices.to_numpy()]
    return found


def _scopes(rows: pa.Table, is_host: Flags) -> Int64:
    """A number for the rows among which correlation ids are unique: one a label; none where a label is no process's."""
    code = from_arrow(rows["rank"].combine_chunks().indices)
    of_hosts = np.unique(code[is_host])
    if is_absent(of_hosts).all():
        return np.zeros(len(code), np.int64)
    place = np.minimum(np.searchsorted(of_hosts, code), len(of_hosts) - 1)
    return known_where(of_hosts[place] == code, place)
