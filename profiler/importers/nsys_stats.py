"""CSV of `nsys stats -r cuda_gpu_trace -f csv`: device work only, and sizes rounded to three decimals of MB."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from profiler.importers.base import Imported, ImportOptions
from profiler.importers.collectives import mark_collectives, remark
from profiler.importers.nsys.dropping import drop, far_times, impossible_times, time_limits
from profiler.importers.nsys.event_table import event_table
from profiler.importers.nsys.rows import ABSENT, MEMORIES, Rows, kind_code, look_up, make_rows
from profiler.importers.nsys.tables import NULL, Int64
from profiler.importers.nsys_stats_csv import Columns, read_columns

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


def read(path: Path, _options: ImportOptions) -> Imported:
    """Read one CSV. Raises HprofError for a file that is none."""
    dropped: Counter[str] = Counter()
    columns = read_columns(path, dropped)
    names, name_code = _distinct(columns.text("Name"))
    rows = _cleaned(_rows(columns, names, name_code), dropped)
    if len(rows):
        rows = rows.shifted(-int(rows["start"].min()))
    found = Imported(source="nsys", tables={}, dropped=dropped, cannot_say=[*_CANNOT_SAY, _rounding(columns)])
    texts = [*names, "memset", "uvm", "peer"]
    streams, stream_code = _stream_labels(rows)
    events = event_table(rows, texts, {"stream": stream_code}, {"stream": streams})
    found.tables["events"], n_collectives = mark_collectives(events)
    found.warnings += remark(n_collectives)
    if columns.is_cut:
        found.warnings.append(
            "The CSV does not end with a line break: its last row may be cut, and rows may be missing."
        )
    if gpus := _gpus(columns):
        found.manifest_fields["machine"] = {"gpus": gpus}
    if len(rows) == 0:
        found.warnings.append("The CSV holds no device work: `nsys stats` found no kernel, copy or memset.")
    return found


def _rows(columns: Columns, names: list[str], name_code: Int64) -> Rows:
    kinds = [_classify(name) for name in names]
    kind, detail = (np.array([entry[i] for entry in kinds], np.int64) for i in (0, 1))
    # Details come after the names in the list of texts.
    detail = np.where(detail == ABSENT, ABSENT, detail + len(names))
    start = columns.numbers("Start", columns.scale("Start"))
    duration = columns.numbers("Duration", columns.scale("Duration"))
    is_known = (start != NULL) & (duration != NULL)
    n_bytes = columns.numbers("Bytes", columns.scale("Bytes"))
    return make_rows(
        look_up(kind, name_code, ABSENT),
        start=start,
        end=np.where(is_known, start + np.where(is_known, duration, 0), NULL),
        device=_by_text(columns, "Device", _device_number, NULL),
        context=columns.numbers("Ctx"),
        stream=columns.numbers("Strm"),
        correlation=columns.numbers("CorrId"),
        name=name_code,
        bytes=np.where(n_bytes > 0, n_bytes, NULL),
        memory=_by_text(columns, "SrcMemKd", _memory_code, ABSENT),
        detail=look_up(detail, name_code, ABSENT),
    )


def _cleaned(rows: Rows, dropped: Counter[str]) -> Rows:
    reasons = {"unknown operation": rows["kind"] == ABSENT}
    # A trace that starts at 0 has a first row at 0: only missing times are impossible here.
    reasons |= impossible_times(rows["start"], rows["end"], on_device=False)
    rows = drop(rows, "row", reasons, dropped)
    return drop(rows, "row", far_times(rows["start"], time_limits(rows["start"])), dropped)


def _classify(name: str) -> tuple[int, int]:
    """(kind code or ABSENT, index of the detail in memset, uvm, peer or ABSENT)."""
    if name.lower().startswith("[cuda memset"):
        return kind_code("compute"), 0
    copy = _COPY.fullmatch(name)
    if copy is None:
        # Kernels have no brackets there: it is an operation of its own, or a name that was cut off.
        return (ABSENT, ABSENT) if name.startswith("[") else (kind_code("compute"), ABSENT)
    how = _HOW.fullmatch(copy["how"])
    if how is None:
        return ABSENT, ABSENT
    ends = "".join("d" if how[side][0].lower() in "dap" else "h" for side in "ab")
    kind = {"hd": "h2d", "dh": "d2h", "dd": "d2d"}.get(ends)
    if kind is None:
        return ABSENT, ABSENT
    peer = how["a"][0].lower() == "p"
    return kind_code(kind), 1 if copy["unified"] or how["unified"] else 2 if peer else ABSENT


def _by_text(columns: Columns, name: str, number: Callable[[str], int], missing: int) -> Int64:
    texts, code = _distinct(columns.text(name))
    return look_up(np.array([number(text) for text in texts], np.int64), code, missing)


def _distinct(texts: pa.ChunkedArray) -> tuple[list[str], Int64]:
    encoded = pa.array(texts.to_pylist(), pa.string()).dictionary_encode() if texts.num_chunks == 0 else None
    if encoded is None:
        encoded = pa.chunked_array(texts).combine_chunks().dictionary_encode()
    codes: Int64 = encoded.indices.fill_null(ABSENT).to_numpy(zero_copy_only=False).astype(np.int64)
    return encoded.dictionary.to_pylist(), codes


def _device_number(text: str) -> int:
    parts = _DEVICE.fullmatch(text)
    return int(parts["number"]) if parts else NULL


def _memory_code(text: str) -> int:
    memory = _MEMORY.get(text.strip().lower())
    return ABSENT if memory is None else MEMORIES.index(memory)


def _gpus(columns: Columns) -> list[dict[str, Any]]:
    found = [_DEVICE.fullmatch(text) for text in _distinct(columns.text("Device"))[0]]
    return [{"index": int(parts["number"]), "name": parts["name"]} for parts in found if parts]


def _stream_labels(rows: Rows) -> tuple[list[str], Int64]:
    """The stream's number, with `context/` before it where the same number lies in several contexts."""
    pairs, code = np.unique(np.stack([rows["stream"], rows["context"]]), axis=1, return_inverse=True)
    streams = pairs[0].tolist()
    labels = [
        str(stream) if streams.count(stream) == 1 else f"{context}/{stream}"
        for stream, context in zip(streams, pairs[1].tolist(), strict=True)
    ]
    return labels, np.where(rows["stream"] == NULL, ABSENT, code.ravel())


def _rounding(columns: Columns) -> str:
    return (
        f"sizes to better than {max(columns.scale('Bytes') // 1000, 1):,} bytes, and none of copies that round to 0: "
        "`nsys stats` writes three decimals; import the SQLite export for exact ones"
    )
