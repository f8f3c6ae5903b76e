"""CSV of `nsys stats -r cuda_gpu_trace -f csv`: device work only, and sizes rounded to three decimals of MB.

Columns are found by their names without units, and numbers are parsed exactly.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from executor.arrays import Int64
from executor.errors import HprofError, first_line
from executor.files import bounded_read
from profiler.importers.absent import column_of, from_arrow, is_absent, is_known, known_where, taken
from profiler.importers.base import Imported, ImportOptions, TraceFormat, read_head
from profiler.importers.device_traces import mark_collectives, remark_collectives
from profiler.importers.dropping import OVERRUNS, far_times, overrunning, remark_overlaps, time_limits
from profiler.importers.nsys.rows import (
    EventRows,
    distinct_streams,
    drop,
    event_table,
    impossible,
    kind_code,
    make_rows,
)
from profiler.importers.nsys.tables import MAX_TEXT_CHARS
from profiler.schema import MEMORIES

_COPY: Final = re.compile(r"\[CUDA (?P<unified>u\w* (?:memory )?)?memcpy (?P<how>[^\]]+)\]", re.IGNORECASE)
_END: Final = "host|device|array|peer|[hdap]"
_HOW: Final = re.compile(rf"(?P<unified>unified )?(?P<a>{_END})(?:-to-|to)(?P<b>{_END})", re.IGNORECASE)
_MEMORY: Final = {
    "pageable": "pageable",
    "pinned": "pinned",
    "device": "device",
    "array": "device",
    "managed": "managed",
    "device static": "device",
    "managed static": "managed",
}
_DEVICE: Final = re.compile(r"(?P<name>.*?)\s*\((?P<number>\d{1,4})\)")
_CANNOT_SAY: Final = (
    "the process, host calls, synchronisations and NVTX ranges: a cuda_gpu_trace CSV holds device work alone",
    "arms, passes, ubatches, layers, tokens and experts: a cuda_gpu_trace CSV does not name them",
)


def detect(_path: Path, head: bytes) -> bool:
    """Whether the header of a report of `nsys stats` is there, after whatever nsys printed before it.

    Also that of a report with sums, which `read` refuses by name.
    """
    reports = ((b"Start (", b"Duration (", b"SrcMemKd"), (b"Time (%),Total Time (", b"StdDev ("))
    return any(all(column in head for column in columns) for columns in reports)


def read(path: Path, _options: ImportOptions) -> Imported:
    """Read one CSV. Raises HprofError for a file that is none."""
    dropped: Counter[str] = Counter()
    columns = read_columns(path, dropped)
    names, name_code = _distinct(columns.text("Name"))
    rows, n_overlapping = _cleaned(_rows(columns, names, name_code), len(names) + 1, dropped)
    if len(rows):
        rows = rows.shifted(-int(rows["start"].min()))
    found = Imported(source="nsys", tables={}, dropped=dropped, cannot_say=[*_CANNOT_SAY, _rounding(columns)])
    texts = [*names, "memset", "uvm", "peer"]
    streams, stream_code = _stream_labels(rows)
    events = event_table(rows, texts, {"stream": stream_code}, {"stream": streams})
    found.tables["events"], n_collectives = mark_collectives(events)
    found.warnings += [*remark_collectives(n_collectives), *remark_overlaps(n_overlapping)]
    if columns.is_cut:
        found.warnings.append(
            "The CSV does not end with a line break: its last row may be cut, and rows may be missing."
        )
    if gpus := _gpus(columns):
        found.manifest_fields["machine"] = {"gpus": gpus}
    if len(rows) == 0:
        found.warnings.append("The CSV holds no device work: `nsys stats` found no kernel, copy or memset.")
    return found


def sample() -> bytes:
    """One kernel."""
    return (
        b"Start (ns),Duration (ns),CorrId,Bytes (MB),SrcMemKd,Device,Ctx,Strm,Name\n"
        b"1000,4000,1,,,NVIDIA H200 (0),1,7,gemm\n"
    )


FORMAT: Final = TraceFormat(detect, read, sample, endings=(".csv", ".txt"))


def _rows(columns: CsvColumns, names: list[str], name_code: Int64) -> EventRows:
    kinds = [_classify(name) for name in names]
    kind, detail = (column_of(entry[i] for entry in kinds) for i in (0, 1))
    # Details come after the names in the list of texts.
    detail = known_where(is_known(detail), detail + len(names))
    start = columns.numbers("Start", columns.scale("Start"))
    duration = columns.numbers("Duration", columns.scale("Duration"))
    has_times = is_known(start) & is_known(duration)
    n_bytes = columns.numbers("Bytes", columns.scale("Bytes"))
    return make_rows(
        taken(kind, name_code),
        start=start,
        end=known_where(has_times, start + np.where(has_times, duration, 0)),
        device=_by_text(columns, "Device", _device_number),
        context=columns.numbers("Ctx"),
        stream=columns.numbers("Strm"),
        correlation=columns.numbers("CorrId"),
        name=name_code,
        bytes=known_where(n_bytes > 0, n_bytes),
        memory=_by_text(columns, "SrcMemKd", _memory_code),
        detail=taken(detail, name_code),
    )


def _cleaned(rows: EventRows, migration: int, dropped: Counter[str]) -> tuple[EventRows, int]:
    """Without rows that cannot be, and how many overlap on no serial stream. migration: the detail of page migrations,
    which are in no stream's order.
    """
    reasons = {"unknown operation": is_absent(rows["kind"])}
    # A trace that starts at 0 has a first row at 0: only missing times are impossible here.
    reasons |= impossible(rows["start"], rows["end"], on_device=False)
    rows = drop(rows, "row", reasons, dropped)
    rows = drop(rows, "row", far_times(rows["start"], time_limits(rows["start"])), dropped)
    is_apart = is_absent(rows["stream"]) | (rows["detail"] == migration)
    stream = known_where(~is_apart, distinct_streams(rows).line)
    overruns, n_overlapping = overrunning(stream, rows["start"], rows["end"], rows["correlation"])
    return drop(rows, "device row", {OVERRUNS: overruns}, dropped), n_overlapping


def _classify(name: str) -> tuple[int | None, int | None]:
    """(kind code, index of the detail in memset, uvm, peer), None for none."""
    if name.lower().startswith("[cuda memset"):
        return kind_code("compute"), 0
    copy = _COPY.fullmatch(name)
    if copy is None:
        # Kernels have no brackets there: it is an operation of its own, or a name that was cut off.
        return (None, None) if name.startswith("[") else (kind_code("compute"), None)
    how = _HOW.fullmatch(copy["how"])
    if how is None:
        return None, None
    ends = "".join("d" if how[side][0].lower() in "dap" else "h" for side in "ab")
    kind = {"hd": "h2d", "dh": "d2h", "dd": "d2d"}.get(ends)
    if kind is None:
        return None, None
    peer = how["a"][0].lower() == "p"
    return kind_code(kind), 1 if copy["unified"] or how["unified"] else 2 if peer else None


def _by_text(columns: CsvColumns, name: str, number: Callable[[str], int | None]) -> Int64:
    texts, code = _distinct(columns.text(name))
    return taken(column_of(number(text) for text in texts), code)


def _distinct(texts: pa.ChunkedArray) -> tuple[list[str], Int64]:
    encoded = pa.array(texts.to_pylist(), pa.string()).dictionary_encode() if texts.num_chunks == 0 else None
    if encoded is None:
        encoded = pa.chunked_array(texts).combine_chunks().dictionary_encode()
    return encoded.dictionary.to_pylist(), from_arrow(encoded.indices)


def _device_number(text: str) -> int | None:
    parts = _DEVICE.fullmatch(text)
    return int(parts["number"]) if parts else None


def _memory_code(text: str) -> int | None:
    memory = _MEMORY.get(text.strip().lower())
    return None if memory is None else MEMORIES.index(memory)


def _gpus(columns: CsvColumns) -> list[dict[str, Any]]:
    found = [_DEVICE.fullmatch(text) for text in _distinct(columns.text("Device"))[0]]
    return [{"index": int(parts["number"]), "name": parts["name"]} for parts in found if parts]


def _stream_labels(rows: EventRows) -> tuple[list[str], Int64]:
    """The stream's number, with `context/` before it where the same number lies in several contexts."""
    pairs, code = np.unique(np.stack([rows["stream"], rows["context"]]), axis=1, return_inverse=True)
    streams = pairs[0].tolist()
    n_contexts = Counter(streams)
    labels = [
        str(stream) if n_contexts[stream] == 1 else f"{context}/{stream}"
        for stream, context in zip(streams, pairs[1].tolist(), strict=True)
    ]
    return labels, known_where(is_known(rows["stream"]), code.ravel())


def _rounding(columns: CsvColumns) -> str:
    return (
        f"sizes to better than {max(columns.scale('Bytes') // 1000, 1):,} bytes, and none of copies that round to 0: "
        "`nsys stats` writes three decimals; import the SQLite export for exact ones"
    )


_HEADER: Final = re.compile(rb"^\"?Start \(", re.MULTILINE)
_COLUMN: Final = re.compile(r"(?P<name>[^(]+?)\s*(?:\((?P<unit>[^)]*)\))?")
_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "nsec": 1,
    "usec": 10**3,
    "msec": 10**6,
    "sec": 10**9,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
_NUMBER: Final = r"^(?P<whole>[0-9]{1,18})(?:\.(?P<fraction>[0-9]{0,9}))?$"
_BILLION: Final = 10**9
_MAX_BYTES: Final = 512 << 20
_MAX_ROWS: Final = 6_000_000  # of some 350 bytes each, while they become events
_DECODED_BYTES: Final = 1 << 24  # at once: a text of one wide character takes four times its bytes
_INSTEAD: Final = "import the SQLite export, which is read in parts"


@dataclass(frozen=True, slots=True)
class CsvColumns:
    """Text columns by their names without units; `scale` gives a unit's size in ns or bytes."""

    texts: dict[str, pa.ChunkedArray]
    units: dict[str, str]
    n_rows: int
    path: Path
    is_cut: bool  # nsys ends every line

    def text(self, name: str) -> pa.ChunkedArray:
        """A column, null throughout where the file lacks it, cut to MAX_TEXT_CHARS."""
        column = self.texts.get(name)
        if column is None:
            return pa.chunked_array([pa.nulls(self.n_rows, pa.string())])
        return pc.utf8_slice_codeunits(column, 0, MAX_TEXT_CHARS)

    def scale(self, name: str) -> int:
        """ns or bytes in one unit of the column; raises HprofError for a unit that nsys does not have."""
        unit = self.units.get(name) or "B"
        if unit not in _UNITS:
            raise HprofError(
                f"{self.path} has its column '{name}' in '{unit[:20]}', a unit that hprof does not know; write it "
                "again with `nsys stats --timeunit ns`."
            )
        return _UNITS[unit]

    def numbers(self, name: str, scale: int = 1) -> Int64:
        """A column times `scale`, exact, rounded down below 1; no value where a cell is no plain number."""
        parts = pc.extract_regex(self.text(name), pattern=_NUMBER)
        if isinstance(parts, pa.ChunkedArray):
            parts = parts.combine_chunks()
        whole = _int64(pc.struct_field(parts, "whole"), 1)
        fraction = _int64(pc.struct_field(parts, "fraction"), 9)
        known = ~parts.is_null().to_numpy(zero_copy_only=False)
        small = known & (whole <= np.iinfo(np.int64).max // max(scale, 1) - 1)
        return known_where(small, whole * scale + fraction * scale // _BILLION)


def read_columns(path: Path, dropped: Counter[str]) -> CsvColumns:
    """The CSV's columns as texts; rows with a wrong number of cells are counted in `dropped`."""
    start = _HEADER.search(read_head(path))
    if start is None:
        raise HprofError(
            f"{path} has no line that starts with 'Start (', so it says not when anything ran, as reports with sums "
            "do not; write it with `nsys stats --report cuda_gpu_trace --format csv`."
        )

    try:
        data = _utf8(path, start.start())
        header, _, body = data.partition(b"\n")
        columns = _header(header)
        names = [name for name, _ in columns]
        table = (
            _table(body, names, dropped)
            if body.strip()
            else pa.table({name: pa.array([], pa.string()) for name in names})
        )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise HprofError(
            f"{path} cannot be read as CSV ({first_line(error)}); write it again with `nsys stats`."
        ) from error
    texts = dict(zip(names, table.columns, strict=True))
    return CsvColumns(texts, dict(columns), table.num_rows, path, is_cut=not data.endswith(b"\n"))


def _utf8(path: Path, offset: int) -> bytes:
    """The file from `offset` on; bytes that are no UTF-8 are replaced, as arrow would stop at them."""
    data = bounded_read(path, _MAX_BYTES, "a CSV of `nsys stats`", _INSTEAD)
    if data.count(b"\n") > _MAX_ROWS:
        raise HprofError(f"{path} has more than {_MAX_ROWS:,} rows, too many for a CSV of `nsys stats`; {_INSTEAD}.")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    parts = [decoder.decode(data[at : at + _DECODED_BYTES]).encode() for at in range(offset, len(data), _DECODED_BYTES)]
    return b"".join([*parts, decoder.decode(b"", final=True).encode()])


def _table(body: bytes, names: list[str], dropped: Counter[str]) -> pa.Table:
    def skip(_row: pacsv.InvalidRow) -> str:
        dropped["row: wrong number of cells"] += 1
        return "skip"

    # A thread that reads may hold `body` even while the interpreter ends, and would end the process with it.
    return pacsv.read_csv(
        pa.BufferReader(body),
        read_options=pacsv.ReadOptions(column_names=names, use_threads=False),
        parse_options=pacsv.ParseOptions(invalid_row_handler=skip),
        convert_options=pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True),
    )


def _header(line: bytes) -> list[tuple[str, str]]:
    """(name, unit) of each column, names made distinct."""
    found: list[tuple[str, str]] = []
    for number, cell in enumerate(next(csv.reader([line.decode("utf-8", "replace")]))):
        parts = _COLUMN.fullmatch(cell.strip())
        name = parts["name"] if parts else cell
        taken = {name for name, _ in found}
        found.append((f"{name} {number}" if name in taken else name, (parts["unit"] or "") if parts else ""))
    return found


def _int64(texts: pa.StringArray, pad: int) -> Int64:
    filled = pc.fill_null(texts, "0")
    values: Int64 = pc.utf8_rpad(filled, pad, "0").cast(pa.int64()).to_numpy()
    return values
