"""What each kind of CUPTI's records costs a decode, measured inside one process, where processes do not differ.

    python -m benchmarks.gpu.record_kinds --bin llama-bench [-m moe.gguf] [-r 40] [-o kinds.json]

Every 120 ms the recorder asks CUPTI for something else: for all, then for all but one kind, in turn. The calls that
launch graphs are recorded throughout, and one is a token. A turn's figure is the median time between two of them; what
a kind costs is how much longer a token is in the turns beside, median over the turns and a 95 % interval.
Whatever asking for a kind has changed for good does not show: `record_candidates` compares processes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import click
import numpy as np

from benchmarks.gpu.llama_decode import LlamaDecode, given_or_made, trial_recording
from executor.arrays import Int64
from executor.errors import HprofError
from profiler.arithmetic.stats import estimate
from profiler.importers.cupti_spool.spool import RecordType, SpoolFile, read_spool
from profiler.recording.session import RecordingSettings

TURN_MS: Final = 120
_SETTLING_NS: Final = 20_000_000  # after a change: the first tokens are no measure of it
_MIN_TOKENS: Final = 10  # of a turn
_MARK: Final = "trial without: "
_LAUNCH: Final = "GraphLaunch"


@dataclass(frozen=True, slots=True)
class KindCost:
    """What a token takes longer with these kinds of records than without them."""

    left_out: str
    cost_us: float
    low_us: float | None  # 95 % confidence; None below six turns
    high_us: float | None
    n_turns: int
    token_us: float  # with everything asked for


def costs(spool: SpoolFile) -> list[KindCost]:
    """Of each set of kinds that was left out in turn, dearest first. Raises HprofError where no graph was launched."""
    turns = _turns(spool)
    with_all = [turn.token_us for turn in turns if not turn.left_out]
    found: dict[str, list[float]] = defaultdict(list)
    for before, turn, after in zip(turns, turns[1:], turns[2:], strict=False):
        if turn.left_out and not before.left_out and not after.left_out:
            found[turn.left_out].append((before.token_us + after.token_us) / 2 - turn.token_us)
    rows = []
    for name, differences in found.items():
        if (cost := estimate(differences)) is not None:
            token_us = float(np.nanmedian(with_all))
            rows.append(KindCost(name, cost.median, cost.low, cost.high, cost.n, token_us))
    return sorted(rows, key=lambda row: -row.cost_us)


class _Turn(NamedTuple):
    left_out: str  # empty: nothing
    token_us: float  # median; NaN where it holds too few


def _turns(spool: SpoolFile) -> list[_Turn]:
    starts = launches(spool)
    marks = [
        (int(record["start"]), text.removeprefix(_MARK))
        for record in spool.of_type(RecordType.MARK)
        if (text := spool.texts.get(int(record["name"]), "")).startswith(_MARK)
    ]
    found = []
    for (begin, name), (end, _) in pairwise(marks):
        inside = starts[(starts >= begin + _SETTLING_NS) & (starts < end)]
        token_us = float(np.median(np.diff(inside))) / 1e3 if len(inside) > _MIN_TOKENS else float("nan")
        found.append(_Turn(name, token_us))
    return found


def launches(spool: SpoolFile) -> Int64:
    """When graphs were launched, in ns: by the runtime's calls, where they and the driver's are recorded.

    Raises HprofError where none was.
    """
    calls = spool.of_type(RecordType.CALL)
    for kind in (0, 1):
        of_kind = calls[calls["kind"] == kind]
        named = [number for number, text in spool.texts.items() if _LAUNCH in text]
        starts = of_kind["start"][np.isin(of_kind["name"], named)]
        if len(starts):
            return np.sort(starts.astype(np.int64))
    raise HprofError(f"{spool.name} holds no launch of a CUDA graph; run a model that is all resident.")


@click.command()
@click.option("--bin", "binary", required=True, type=click.Path(exists=True), help="llama-bench, a CUDA build.")
@click.option("-m", "model", type=click.Path(exists=True), help="All resident; left out, one of few experts is made.")
@click.option("-n", "n_gen", default=250, show_default=True, help="Below 256: one graph is replayed throughout.")
@click.option("-r", "repetitions", default=60, show_default=True)
@click.option("-o", "output", type=click.Path(path_type=Path), help="Write the figures as JSON too.")
def main(binary: str, model: str | None, n_gen: int, repetitions: int, output: Path | None) -> None:
    """Measure and print."""
    with (
        given_or_made(model) as path,
        trial_recording(f"turn_ms={TURN_MS}", RecordingSettings()) as (recording, variables),
    ):
        speeds = LlamaDecode(binary, path, n_gen, repetitions).speeds(variables)
        spool = max((read_spool(file) for file in recording.spools()), key=lambda one: len(one.records))
        rows = costs(spool)
        problems = recording.new_problems()
    click.echo(f"{np.median(speeds):.1f} t/s over all turns")
    for row in rows:
        bounds = "" if row.low_us is None else f" ({row.low_us:+.1f} to {row.high_us:+.1f})"
        click.echo(f"{row.cost_us:+7.1f} us{bounds}  {row.left_out}  ({row.n_turns} turns, of {row.token_us:.1f} us)")
    for sentence in problems:
        click.echo(sentence)
    if output is not None:
        output.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
