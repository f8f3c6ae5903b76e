"""Reads llama-bench's output: json, jsonl, csv, sql and md of any age, ik_llama's too. Rows become passes.

`read` does it all; `cannot_say`, `doubts` and `manifest_fields` are what `profiler.engines.llama_bench` uses too,
which runs the program itself.

A pass is one repetition where the format lists them (`samples_ns`), else the mean of a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from executor.errors import HprofError
from executor.policies import PREFETCH_ARMS, find_traits
from profiler.importers.base import Imported, ImportOptions, TraceFormat
from profiler.importers.llama_bench.arms import (
    DEFAULT_ARM,
    arm_name,
    arm_settings,
    cell,
    pass_columns,
    run_boots,
    unsaid_differences,
)
from profiler.importers.llama_bench.formats import Format, ParsedRows, RawRow
from profiler.importers.llama_bench.outputs import (
    RUN,
    RUN_TITLE,
    decoded,
    looks_like_rows,
    parse,
    read_text,
)
from profiler.importers.llama_bench.rows import IMPOSSIBLE_SAMPLES, BenchRow, bench_row
from profiler.manifest import ManifestArm
from profiler.storage.writer import conform

_MARKS: Final = (b"build_commit", b"llama_bench", b"model_filename", b"n_gpu_layers")


def detect(_path: Path, head: bytes) -> bool:
    """Whether a field's name is there, or a line heads a table or csv rows."""
    as_bytes = decoded(head).encode() if b"\x00" in head[:64] else head
    begins_table = as_bytes.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"| model")
    return begins_table or any(mark in as_bytes for mark in _MARKS) or looks_like_rows(as_bytes)


def read(path: Path, options: ImportOptions) -> Imported:
    """Read one file. Raises HprofError where it holds no usable row."""
    return read_rows(parse(read_text(path), str(path)), str(path), options.arm_by)


def sample() -> bytes:
    """One row of jsonl: a prompt of 512 tokens in 2 s."""
    return (
        b'{"build_commit": "0", "model_filename": "model.gguf", "n_prompt": 512, "n_gen": 0, '
        b'"samples_ns": [2000000000], "samples_ts": [256.0]}\n'
    )


FORMAT: Final = TraceFormat(
    detect, read, sample, endings=(".jsonl", ".json", ".csv", ".md", ".sql", ".txt"), has_fields=True
)


def read_rows(parsed: ParsedRows, origin: str, arm_by: Sequence[str] = ()) -> Imported:
    """What `read` does once the rows are parsed; `arm_by` names the fields that make arms."""
    rows, dropped = usable_rows(parsed)
    if not rows:
        raise HprofError(f"{origin} holds no llama-bench row that can be used ({_reasons(dropped)}); run it again.")
    names = arm_settings(rows, arm_by, parsed.unshared)
    arms = [arm_name(row, names) for row in rows]
    boots = run_boots(rows, arms)
    return Imported(
        source="llama-bench",
        tables={"passes": conform("passes", pass_columns(rows, arms, boots))},
        manifest_fields=manifest_fields(rows, names),
        cannot_say=cannot_say(rows, parsed.format),
        dropped=+dropped,
        default_arm=None if names else DEFAULT_ARM,
        warnings=[
            *warnings(rows, names, unsaid_differences(rows, names), truncated=parsed.truncated),
            *_not_interleaved(boots, names),
            *_repeated(rows),
        ],
    )


def _repeated(rows: Sequence[BenchRow]) -> list[str]:
    """A warning where one output holds a test twice: `-p 512,512` does that, and so does `>>` of two processes."""
    tests = Counter(
        (row.run, cell(row), tuple(sorted((name, str(value)) for name, value in row.settings.items()))) for row in rows
    )
    most = max(tests.values())
    if most == 1:
        return []
    return [
        f"One output holds a test up to {most} times, and nothing in it tells processes apart: they count as "
        "repetitions of one process. Import one file a process (hprof import --arm NAME=first.jsonl "
        "--arm NAME=second.jsonl), or measure with hprof run --engine llama-bench --boots 6."
    ]


def _not_interleaved(boots: Sequence[int], names: Sequence[str]) -> list[str]:
    n_boots = max(boots) + 1
    if n_boots == 1:
        return []
    paired = " and paired in the order of the file" if names else ""
    return [
        f"The file holds up to {n_boots} runs of one arm: they count as boots that were not interleaved{paired}, "
        "so a drift of the machine is part of every difference."
    ]


def usable_rows(parsed: ParsedRows) -> tuple[list[BenchRow], Counter[str]]:
    """The rows that measured something, and how many were left out, by reason."""
    dropped = Counter(parsed.dropped)
    rows = []
    for raw in _without_repeats(parsed, dropped):
        row = bench_row(raw)
        if isinstance(row, str):
            dropped[row] += 1
        else:
            rows.append(row)
    return rows, dropped


def _without_repeats(parsed: ParsedRows, dropped: Counter[str]) -> Iterator[RawRow]:
    """Each row once: no two runs end in the same second with the same times. (An md row tells neither.)"""
    seen: set[str] = set()
    for raw in parsed.rows:
        measured = sorted(item for item in raw.items() if item[0] not in (RUN, RUN_TITLE))
        text = repr(measured) if raw.get("test_time") else ""
        if text in seen:
            dropped["rows that repeat another one to the last digit"] += 1
        else:
            yield raw
        seen |= {text} - {""}


def _reasons(dropped: Counter[str]) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in dropped.items()) or "it has none"


_MACHINE: Final = {"cpu_info": "cpu", "gpu_info": "gpu", "backends": "backends"}
_MODEL: Final = {
    "model_type": "name",
    "model_filename": "path",
    "model_size": "n_bytes",
    "model_n_params": "n_params",
}
_PLACEMENT: Final = ("n_gpu_layers", "n_cpu_moe", "tensor_buft_overrides", "override_tensor", "load_mode", "use_mmap")
KNOWN_TO_A_RUN: Final = (  # hprof notes these itself where it runs the program
    "llama-bench does not record clocks, the link, power, driver or operating system.",
    "llama-bench does not record environment variables that change results, such as GGML_OP_OFFLOAD_MIN_BATCH.",
)
_NEVER_RECORDED: Final = (
    *KNOWN_TO_A_RUN,
    "llama-bench does not record bytes moved, copy times, which operations were offloaded, experts or cache hits.",
    "llama-bench does not record device memory in use, nor whether weights were pinned (load_mode is the request).",
    "The effective placement is not recorded: -ncmoe does not show in the overrides, nor fitted values in any field.",
    "TTFT is not measured: prompts are random tokens without tokenising, sampling or a first token.",
    "Starts of repetitions are not recorded; they are laid end to end.",
)
_MD: Final = (
    "The md table leaves out options at their defaults, and n_ubatch among them.",
    "Times are worked out from t/s with two decimals, a mean of the repetitions' rates.",
)


def manifest_fields(rows: Sequence[BenchRow], names: Sequence[str]) -> dict[str, Any]:
    """Fields of the manifest: what all rows share, and the arms in the order of the file, `off` first."""
    shared = _shared(rows)
    arms = {arm_name(row, names): {name: row.settings.get(name) for name in names} for row in rows}
    ordered = sorted(arms, key=lambda arm: arm != PREFETCH_ARMS[0])
    is_prefetch_alone = list(names) == ["prefetch_weights"]
    traits = {arm: find_traits(arm) for arm in PREFETCH_ARMS.values()} if is_prefetch_alone else {}
    times = [row.test_time for row in rows if row.test_time]
    return {
        "machine": {to: shared[name] for name, to in _MACHINE.items() if name in shared},
        "model": {to: shared[name] for name, to in _MODEL.items() if name in shared},
        "placement": {name: shared[name] for name in _PLACEMENT if name in shared},
        "arms": [ManifestArm(arm, requested=arm, options=arms[arm], traits=traits.get(arm)) for arm in ordered],
        "grid": {
            name: sorted({getattr(r, name) or 0 for r in rows}) for name in ("n_prompt", "n_gen", "n_depth", "n_ubatch")
        },
        "extra": {"llama_bench": shared, "stddev_ns": _spreads(rows)},
        **({"created_utc": times[0]} if times else {}),
    }


def cannot_say(rows: Sequence[BenchRow], file_format: Format) -> list[str]:
    """A sentence for each thing that these rows do not tell."""
    said = list(_NEVER_RECORDED)
    if any(row.stddev_ns is not None and IMPOSSIBLE_SAMPLES not in row.doubts for row in rows):
        said.append(
            "Single repetitions are not in this format: each pass is the mean of a row; jsonl and json have them."
        )
    if any(row.n_prompt and row.n_gen and row.parts_ns is None for row in rows):
        said.append(
            "Tests that prompt and generate have one time for both: their prefill and decode are not known apart."
        )
    return [*said, *(_MD if file_format == "md" else ())]


def doubts(rows: Sequence[BenchRow]) -> list[str]:
    """A sentence for each thing that is wrong with rows that are used, with their number."""
    counts = Counter(doubt for row in rows for doubt in row.doubts)
    return [f"{n} {'row' if n == 1 else 'rows'} {doubt}." for doubt, n in counts.items()]


def warnings(rows: Sequence[BenchRow], names: Sequence[str], unsaid: Sequence[str], *, truncated: bool) -> list[str]:
    """Sentences to show beside the figures."""
    found = doubts(rows)
    if truncated:
        found.append("The file ends inside a row; whole rows before it were kept.")
    if unsaid:
        found.append(f"Rows that differ in {', '.join(unsaid)} are taken for repetitions of one arm.")
    if names:
        found.append("llama-bench runs one arm after the other, so a drift of the machine is part of every difference.")
    return found


def _shared(rows: Sequence[BenchRow]) -> dict[str, Any]:
    first = rows[0].settings
    return {name: v for name, v in first.items() if all(row.settings.get(name) == v for row in rows)}


def _spreads(rows: Sequence[BenchRow]) -> dict[str, int]:
    """pass_id -> standard deviation of the samples that a pass of one mean stands for."""
    spreads, pass_id = {}, 0
    for row in rows:
        if row.stddev_ns is not None:
            spreads[str(pass_id)] = row.stddev_ns
        pass_id += max(1, len(row.samples_ns))
    return spreads
