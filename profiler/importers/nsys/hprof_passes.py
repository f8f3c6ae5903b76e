"""The `passes` and `ubatches` tables from ranges of domain `hprof`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from executor.tracing.nvtx_names import PassName, UbatchName
from profiler.arithmetic.joins import NONE
from profiler.importers.durations import durations
from profiler.importers.nsys.hprof_ranges import HprofRanges
from profiler.importers.nsys.project import Projection, innermost
from profiler.importers.nsys.rows import Rows, kind_code
from profiler.importers.nsys.tables import NULL, Int64
from profiler.schema import PASSES, UBATCHES


def pass_table(hprof: HprofRanges, rows: Rows, pass_id: Int64, ubatches: pa.Table) -> pa.Table:
    """One row a pass. It ends when its range and all the work that it launched have ended."""
    numbers = hprof.pass_ids()
    last_end, bytes_h2d = _work_of_passes(rows, pass_id, numbers)
    spans = hprof.passes.spans
    records = []
    for index, (name, number) in enumerate(zip(hprof.pass_names(), numbers.tolist(), strict=True)):
        end = max(int(spans.end[index]), int(last_end[index]))
        own = ubatches.filter(pc.equal(ubatches["pass_id"], number))
        window = {"t_start": int(spans.start[index]), "t_end": end}
        records.append(_asked(name) | window | durations(own, end) | {"pass_id": number, "order": index, "boot": 0})
        records[-1]["bytes_h2d"] = int(bytes_h2d[index])
    return pa.Table.from_pylist(records, schema=PASSES)


def ubatch_table(hprof: HprofRanges, work: Projection) -> pa.Table:
    """One row a ubatch inside a pass: the host's start, and the end of its range or of its work if later."""
    ubatches, passes = hprof.ubatches, hprof.passes
    in_pass = innermost(passes.by_process, ubatches.by_process)
    names = [hprof.names[code] for code in ubatches.code.tolist()]
    ends = np.maximum(ubatches.spans.end, np.where(work.n_ops > 0, work.last_ns, NULL))
    pass_ids, pass_names = hprof.pass_ids(), hprof.pass_names()
    seen: dict[int, int] = {}
    records: list[dict[str, Any]] = []
    for index, name in enumerate(names):
        at = int(in_pass[index])
        if at == NONE or not isinstance(name, UbatchName):
            continue
        n_past = seen.get(at, pass_names[at].n_depth)
        seen[at] = n_past + name.n_tokens
        where = {"pass_id": int(pass_ids[at]), "phase": name.phase, "ubatch": name.ubatch}
        size = {"n_tokens": name.n_tokens, "n_past": n_past}
        records.append(where | size | {"t_start": int(ubatches.spans.start[index]), "t_end": int(ends[index])})
    return pa.Table.from_pylist(records, schema=UBATCHES)


def _asked(name: PassName) -> dict[str, Any]:
    columns = ("arm", "n_ubatch", "n_depth", "n_prompt", "n_gen", "repetition", "warmup")
    return {column: getattr(name, column) for column in columns}


def _work_of_passes(rows: Rows, pass_id: Int64, numbers: Int64) -> tuple[Int64, Int64]:
    """When the last row of each pass ends (NULL: no rows), and the bytes that its explicit H2D copies moved."""
    order = np.argsort(numbers, kind="stable")
    at = np.flatnonzero(pass_id != NULL)
    index = order[np.searchsorted(numbers[order], pass_id[at])] if len(numbers) else at[:0]
    last_end = np.full(len(numbers), NULL)
    np.maximum.at(last_end, index, rows["end"][at])
    copied = (rows["kind"][at] == kind_code("h2d")) & (rows["bytes"][at] != NULL)
    bytes_h2d = np.zeros(len(numbers), np.int64)
    np.add.at(bytes_h2d, index[copied], rows["bytes"][at][copied])
    return last_end, bytes_h2d
