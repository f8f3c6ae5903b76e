"""Table (f): the same work on one GPU and on two, whose results must be equal and whose links must both be busy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.thread.markdown import arms_table, share, table
from benchmarks.thread.markdown import number as said
from benchmarks.thread.rows import cell_rows, report_of
from profiler.capture import Capture


def device_tables(captures: Path) -> Iterator[str]:
    """For experts and for a dense model: arms on one and two GPUs, whether they agree, and what each GPU did."""
    for kind in ("experts", "dense"):
        one, two = (str(captures / f"f-{kind}-{n}") for n in (1, 2))
        rows = [(n, row) for n, at in ((1, one), (2, two)) for row in cell_rows(report_of(at))]
        yield arms_table([row | {"arm": f"{row['arm']}, {n} GPU"} for n, row in rows])
        yield _same_results(Capture.open(one), Capture.open(two))
        yield _links(two)


def _same_results(one: Capture, two: Capture) -> str:
    """Whether each pass on two GPUs gave the tokens and logits of its twin on one; `sim` computes neither."""
    keys = ["arm", "repetition"]
    both = [c.passes[~c.passes["warmup"]].set_index(keys)[["tokens", "logits_digest"]] for c in (one, two)]
    joined = both[0].join(both[1].rename(columns=lambda name: f"{name}_two"), how="inner")
    computed = joined[joined["logits_digest"].notna()]
    if computed.empty:
        return "These passes computed no tokens to compare.\n"
    tokens = sum(list(a) == list(b) for a, b in zip(computed["tokens"], computed["tokens_two"], strict=True))
    logits = int((computed["logits_digest"] == computed["logits_digest_two"]).sum())
    return (
        f"Of {len(computed)} passes, {tokens} gave the same tokens on two GPUs as on one, {logits} the same logits.\n"
    )


def _links(path: str) -> str:
    columns = ["GPU", "copied GB", "GB/s", "busy copy s", "hidden", "busy compute s"]
    lines = []
    for device in report_of(path).devices:
        copies = device.copies["h2d"]
        figures = (copies.bytes / 1e9 if copies.bytes else None, copies.gb_s, copies.busy_ns / 1e9)
        busy_s = device.compute_busy_ns / 1e9
        lines.append([str(device.device), *map(said, figures), share(copies.hidden_ratio), said(busy_s)])
    return table(columns, lines)
