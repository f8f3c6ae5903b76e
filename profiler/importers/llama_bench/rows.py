"""A raw row, whatever its format and age, as what it measured and under which settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final, TypeGuard

from executor.units import LARGEST_COUNT
from profiler.importers.llama_bench.formats import RawRow
from profiler.importers.llama_bench.outputs import RUN

Setting = str | int | float | None

_MAX: Final = 2**62
_MAX_NS: Final = 2**50  # 13 days for one sample
_MAX_TEXT: Final = 400
# what is wrong with a row that is used all the same
IMPOSSIBLE_SAMPLES: Final = (
    "whose samples_ns cannot be (not positive, no whole numbers, or another count than samples_ts): each is one pass, "
    "the row's mean"
)
IMPOSSIBLE_MEAN: Final = "whose avg_ns cannot be: their time is worked out from avg_ts"
NO_UBATCH: Final = "whose n_ubatch is no size: they count as of an unknown ubatch"
CONTRADICTED: Final = "whose samples_ns have another mean than their avg_ns: the samples count"
_TEST: Final = re.compile(r"^(?:pp ?(\d{1,9}))?\+?(?:tg ?(\d{1,9}))?(?: ?@ ?d(\d{1,9}))?$")  # "pp 512" until 2024
# everything else in a row is a setting
MEASURED: Final = frozenset(
    {
        *(
            "n_prompt",
            "n_gen",
            "n_depth",
            "n_ubatch",
            "test",
            "test_time",
            "avg_ns",
            "stddev_ns",
            "avg_ts",
            "stddev_ts",
        ),
        *(
            RUN,
            "samples_ns",
            "samples_ts",
            "pp",
            "tg",
            "n_kv",
            "t_pp",
            "speed_pp",
            "t_tg",
            "speed_tg",
            "t",
            "speed",
            "pl",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One row: a test, its settings and its times in ns.

    `samples_ns` holds one time a repetition where the format has them, else the mean alone.
    For sweep-bench rows, which time prompt and generation apart, it is empty and `parts_ns` has both.
    """

    n_prompt: int
    n_gen: int
    n_depth: int
    n_ubatch: int | None
    samples_ns: tuple[int, ...]
    stddev_ns: int | None  # of the samples that a mean stands for; null where the samples are there
    parts_ns: tuple[int, int] | None
    test_time: str | None
    settings: dict[str, Setting]
    doubts: tuple[str, ...] = ()
    run: int = 0  # the process that printed it, as far as headers in the file tell processes apart


def bench_row(raw: RawRow) -> BenchRow | str:
    """The row, or why it cannot be used."""
    if "t_pp" in raw and "t_tg" in raw:
        return _sweep_row(raw)
    size = _test_size(raw)
    if size is None:
        return "rows without n_prompt and n_gen, or a test name, or with an n_depth that is no number"
    n_prompt, n_gen, n_depth = size
    if n_prompt + n_gen == 0:
        return "rows that neither prompt nor generate"
    samples = _samples(raw)
    mean = _mean_ns(raw, n_prompt + n_gen)
    if not samples and mean is None:
        return "rows without a time"
    return BenchRow(
        n_prompt,
        n_gen,
        n_depth,
        _count(raw.get("n_ubatch")) or None,
        samples or (mean or 0,),
        None if samples else _stddev_ns(raw, mean or 0),
        None,
        _text(raw.get("test_time")),
        _settings(raw),
        tuple(_doubts(raw, samples)),
        raw.get(RUN, 0),
    )


def _sweep_row(raw: RawRow) -> BenchRow | str:
    """ik_llama's llama-sweep-bench: seconds for a prompt and for a generation, at a depth of n_kv."""
    if _int(raw.get("pl", 1)) != 1:
        return "rows of parallel sequences"
    numbers = [_count(raw.get(name)) for name in ("pp", "tg", "n_kv")]
    times = [_scaled_ns(raw.get(name), 10**9) for name in ("t_pp", "t_tg")]
    if None in numbers or None in times:
        return "rows without a time"
    n_prompt, n_gen, n_depth = (n or 0 for n in numbers)
    parts = (times[0] or 0, times[1] or 0)
    return BenchRow(
        n_prompt,
        n_gen,
        n_depth,
        _count(raw.get("n_ubatch")) or None,
        (),
        None,
        parts,
        None,
        _settings(raw),
        run=raw.get(RUN, 0),
    )


def _test_size(raw: RawRow) -> tuple[int, int, int] | None:
    n_prompt, n_gen, n_depth = (_count(raw.get(name)) for name in ("n_prompt", "n_gen", "n_depth"))
    if n_depth is None and raw.get("n_depth") is not None:
        return None
    if n_prompt is not None and n_gen is not None:
        return n_prompt, n_gen, n_depth or 0  # before it had depths, llama-bench always began at 0
    match = _TEST.match(_text(raw.get("test")) or "-")
    if match is None:
        return None
    named = [int(part or 0) for part in match.groups()]
    return named[0], named[1], named[2]


def _samples(raw: RawRow) -> tuple[int, ...]:
    """samples_ns, if all of them can be; else none."""
    value, rates = raw.get("samples_ns"), raw.get("samples_ts")
    if not isinstance(value, list) or len(value) > 100_000 or (isinstance(rates, list) and len(rates) != len(value)):
        return ()
    samples = tuple(n for n in map(_int, value) if _is_time(n))
    return samples if len(samples) == len(value) else ()


def _doubts(raw: RawRow, samples: tuple[int, ...]) -> Iterator[str]:
    """What a reader of a used row must know."""
    mean = _int(raw.get("avg_ns"))
    # llama-bench cuts the mean down to whole nanoseconds
    if samples and _is_time(mean) and abs(sum(samples) - mean * len(samples)) > len(samples):
        yield CONTRADICTED
    elif not samples and raw.get("avg_ns") is not None and not _is_time(mean):
        yield IMPOSSIBLE_MEAN
    elif not samples and raw.get("samples_ns") is not None:
        yield IMPOSSIBLE_SAMPLES
    if raw.get("n_ubatch") is not None and not _count(raw["n_ubatch"]):
        yield NO_UBATCH


def _is_time(ns: int | None) -> TypeGuard[int]:
    return ns is not None and 0 < ns < _MAX_NS


def _mean_ns(raw: RawRow, n_tokens: int) -> int | None:
    mean = _int(raw.get("avg_ns"))
    if _is_time(mean):
        return mean
    speed = _float(raw.get("avg_ts"))
    ns = n_tokens * 1e9 / speed if speed else 0
    return round(ns) if 0 < ns < _MAX_NS else None


def _stddev_ns(raw: RawRow, mean_ns: int) -> int | None:
    """stddev_ns, or for md its first-order estimate: the same share of the mean as the t/s column's."""
    exact = _int(raw.get("stddev_ns"))
    if exact is not None:
        return exact
    speed, spread = _float(raw.get("avg_ts")), _float(raw.get("stddev_ts"))
    return round(mean_ns * spread / speed) if speed and spread is not None and spread < speed else None


def _settings(raw: Mapping[str, object]) -> dict[str, Setting]:
    return {
        name[:_MAX_TEXT]: _setting(value)
        for name, value in list(raw.items())[:200]
        if name not in MEASURED and not isinstance(value, dict | list)
    }


def _setting(value: object) -> Setting:
    """Booleans, and numbers that csv and sql spell as text, come out as numbers: one spelling for all formats."""
    number = _int(value)
    if number is not None:
        return number
    return value if isinstance(value, float) else _text(value)


def _int(value: object) -> int | None:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value.strip(), re.ASCII):
        return int(value)
    return value if isinstance(value, int) and abs(value) < _MAX else None


def _count(value: object) -> int | None:
    number = _int(value)
    return number if number is not None and 0 <= number <= LARGEST_COUNT else None


def _float(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return None
    return number if number is not None and 0 <= number < 1e15 else None


def _scaled_ns(value: object, factor: int) -> int | None:
    try:
        ns = Decimal(str(value)) * factor
    except InvalidOperation:
        return None
    return round(ns) if ns.is_finite() and 0 <= ns < _MAX_NS else None


def _text(value: object) -> str | None:
    return value[:_MAX_TEXT] if isinstance(value, str) else None
