"""How long a pass's phases took, from the ubatches that a trace's ranges name."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def durations(ubatches: pa.Table, end: int) -> dict[str, int | None]:
    """ttft_ns, prefill_ns and decode_ns of the pass that has these ubatches and ends at `end`.

    TTFT and prefill run from the host's start of the first prefill ubatch to that of the first decode ubatch (to
    the pass's end where nothing is decoded): no range marks the instant the token was known.
    """
    prefill = ubatches.filter(pc.equal(ubatches["phase"], "prefill"))["t_start"].to_pylist()
    decode = ubatches.filter(pc.equal(ubatches["phase"], "decode"))["t_start"].to_pylist()
    if not prefill:
        return {"ttft_ns": None, "prefill_ns": None, "decode_ns": end - min(decode) if decode else None}
    known = min(decode) if decode else end
    ttft = known - min(prefill)
    return {"ttft_ns": ttft, "prefill_ns": ttft, "decode_ns": end - known if decode else None}
