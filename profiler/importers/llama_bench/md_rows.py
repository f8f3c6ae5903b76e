"""md: the table that people paste. It shows only options that differ from their default or between rows."""

from __future__ import annotations

import re
from typing import Final

from profiler.importers.llama_bench.parsed import UNREADABLE, Parsed, RawRow

# column:field, where the table's short name is not the field's
FIELD_OF_COLUMN: Final = {
    "model": "model_type",
    "backend": "backends",
    "threads": "n_threads",
    "ngl": "n_gpu_layers",
    "sm": "split_mode",
    "mg": "main_gpu",
    "nkvo": "no_kv_offload",
    "fa": "flash_attn",
    "dev": "devices",
    "ts": "tensor_split",
    "ot": "tensor_buft_overrides",
    "lm": "load_mode",
    "mmap": "use_mmap",
    "dio": "use_direct_io",
    "embd": "embeddings",
    "nopo": "no_op_offload",
    "noh": "no_host",
    "rpk": "repack",
    "fitt": "fit_target",
    "fitc": "fit_min_ctx",
    "pw": "prefetch_weights",
    "ncmoe": "n_cpu_moe",
    "rtr": "repack",
    "fmoe": "fused_moe",
    "mla": "mla_attn",
    "amb": "attn_max_batch",
}
_OVERRIDES: Final = "tensor_buft_overrides"
_SIZE: Final = re.compile(r"^([\d.]+) (B|KiB|MiB|GiB|TiB)$")
_COUNT: Final = re.compile(r"^([\d.]+) ([KMBT])$")
_SPEED: Final = re.compile(r"^([\d.]+)(?:\s+\S{1,3}\s+([\d.]+))?$")  # the plus-minus sign survives few pastes
_BUILD: Final = re.compile(r"^build: (\S+) \((\d+)\)$")


def is_header(line: str) -> bool:
    """Whether a line heads llama-bench's table."""
    names = _cells(line)
    return len(names) > 2 and names[0] == "model" and "t/s" in names


def parse_md(text: str) -> Parsed:
    """The rows of every table; a row's build is the one named below its table."""
    parsed = Parsed("md")
    columns: list[str] = []
    without_build: list[RawRow] = []
    for line in text.splitlines():
        if is_header(line):
            columns = _cells(line)
        elif (build := _BUILD.match(line.strip())) is not None:
            for row in without_build:
                row |= {"build_commit": build[1], "build_number": build[2]}
            without_build.clear()
        elif columns and line.lstrip().startswith("|") and not set(line) <= set("|-: \t"):
            found = _row(line, columns)
            if found is None:
                parsed.dropped[UNREADABLE] += 1
            else:
                parsed.rows.append(found)
                without_build.append(found)
    return parsed


def _row(line: str, columns: list[str]) -> RawRow | None:
    if not line.rstrip().endswith("|"):
        return None  # cut off, perhaps inside the rate: 3 of 37.06
    cells = _cells(line)
    fields = [FIELD_OF_COLUMN.get(name, name) for name in columns]
    surplus = len(cells) - len(fields)
    if surplus > 0 and _OVERRIDES in fields:
        # the pattern's own bars are not escaped: it is what both ends leave over
        at = fields.index(_OVERRIDES)
        cells[at : at + surplus + 1] = ["|".join(cells[at : at + surplus + 1])]
    if len(cells) != len(fields):
        return None
    row: RawRow = dict(zip(fields, cells, strict=True))
    speed = _SPEED.match(row.pop("t/s", ""))
    if speed is None:
        return None
    row |= {"avg_ts": speed[1], "stddev_ts": speed[2]}
    row |= {"model_size": _scaled(_SIZE, row.pop("size", ""), _BYTES)}
    row |= {"model_n_params": _scaled(_COUNT, row.pop("params", ""), _THOUSANDS)}
    return row


_BYTES: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_THOUSANDS: Final = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def _scaled(pattern: re.Pattern[str], text: str, units: dict[str, int]) -> int | None:
    match = pattern.match(text)
    try:
        return round(float(match[1]) * units[match[2]]) if match else None
    except ValueError:
        return None


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
