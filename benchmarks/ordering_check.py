"""How long `hprof check` takes on a capture of a million operations.

    python benchmarks/ordering_check.py
    python benchmarks/ordering_check.py --operations 100000

Repeats the passes of a small simulated run until there are enough operations, and checks them in memory. Prints the
time of each part. Target: at most 10 s for 1,000,000 operations; exit code 1 above it.
"""

from __future__ import annotations

import argparse
import sys
import time

import pyarrow as pa

from executor.devices.factory import DeviceOptions
from executor.models.load import load_model
from executor.passes import OrderingRecord, PassJob
from executor.placement.place import place
from executor.session import Session, SessionOptions
from profiler.ordering.check import find_violations
from profiler.ordering.operations import operations_of
from profiler.storage.writer import conform

TARGET_S_PER_MILLION = 10.0


def one_pass(arm: str) -> pa.Table:
    """The operations of a prompt of 8 ubatches and 32 decoded tokens."""
    model = load_model("tiny-dense")
    options = SessionOptions(DeviceOptions("sim"), 1056, 128, 64, record_ordering=True)
    session = Session(model, place(model.tensors), [arm], options)
    try:
        records = session.run_pass(PassJob(0, arm, 1024, 32, 128, 0, 0)).ordering
    finally:
        session.close()
    names = OrderingRecord.__dataclass_fields__
    return conform("ordering", {name: [getattr(record, name) for record in records] for name in names})


def repeated(part: pa.Table, n_operations: int) -> pa.Table:
    """Pass after pass, at least `n_operations` rows."""
    n_passes = -(-n_operations // part.num_rows)
    at = part.schema.get_field_index("pass_id")
    parts = [
        part.set_column(at, "pass_id", pa.repeat(pa.scalar(i, pa.int32()), part.num_rows)) for i in range(n_passes)
    ]
    return pa.concat_tables(parts).unify_dictionaries()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--arm", default="on")
    options = parser.parse_args()
    rows = repeated(one_pass(options.arm), options.operations)
    begun = time.perf_counter()
    operations = operations_of(rows, {})
    loaded = time.perf_counter()
    found = find_violations(operations)
    done = time.perf_counter()
    limit_s = TARGET_S_PER_MILLION * rows.num_rows / 1e6
    print(f"{rows.num_rows:,} operations, {found.n_pairs:,} pairs: {found.n_races} races, {found.n_wrong} wrong reads")
    print(f"as arrays {loaded - begun:.2f} s, checked {done - loaded:.2f} s; target <= {limit_s:.1f} s together")
    return int(not found.is_clean or done - begun > limit_s)


if __name__ == "__main__":
    sys.exit(main())
