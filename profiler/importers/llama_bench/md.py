"""Reads llama-bench's md tables, as printed and as pasted, with the columns of any age and of forks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from profiler.importers.llama_bench.formats import UNREADABLE, ParsedRows, RawRow

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
_TEST: Final = re.compile(r"^(?:pp ?(?P<pp>\d{1,9}))?\+?(?:tg ?(?P<tg>\d{1,9}))?(?: ?@ ?d(?P<d>\d{1,9}))?$")
_UNREAD: Final = "unread columns"
OTHER_TABLES: Final = "rows of tables that are not llama-bench's"
_BUILD: Final = re.compile(r"^build: (\S+) \((\d+)\)$")


def is_md_header(line: str) -> bool:
    """Whether a line heads llama-bench's table."""
    names = _cells(line)
    return len(names) > 2 and names[0] == "model" and "test" in names and any(name.endswith("t/s") for name in names)


def parse_md(text: str) -> ParsedRows:
    """The rows of every table; a row's build is the one named below its table.

    Options at their defaults have no column.
    """
    parsed = ParsedRows("md")
    columns: list[str] = []
    is_other = False
    without_build: list[RawRow] = []
    lines = text.splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if is_md_header(line):
            columns, is_other = _cells(line), False
        elif _is_row(line) and _is_rule(below):
            is_other = True
        elif is_other and _is_row(line):
            parsed.dropped[OTHER_TABLES] += not _is_rule(line)
        elif (build := _BUILD.match(line.strip())) is not None:
            for row in without_build:
                row |= {"build_commit": build[1], "build_number": build[2]}
            without_build.clear()
        elif columns and _is_row(line) and not _is_rule(line):
            found = _md_row(line, columns)
            if found is None:
                parsed.dropped[UNREADABLE] += 1
            else:
                parsed.dropped += Counter(f"values of the column {name!r}" for name in found.pop(_UNREAD))
                parsed.rows.append(found)
                without_build.append(found)
    return parsed


def _is_row(line: str) -> bool:
    return line.lstrip().startswith("|")


def _is_rule(line: str) -> bool:
    """Whether a line is what stands below a table's header."""
    return _is_row(line) and "-" in line and set(line) <= set("|-: \t")


def _md_row(line: str, columns: list[str]) -> RawRow | None:
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
    rates = _rates({name: row.pop(name) for name in columns if name.endswith("t/s")}, row["test"])
    if rates is None:
        return None
    row |= rates
    row |= {"model_size": _scaled(_SIZE, row.pop("size", ""), _BYTES)}
    row |= {"model_n_params": _scaled(_COUNT, row.pop("params", ""), _THOUSANDS)}
    return row


def _rates(cells: Mapping[str, str], test: str) -> RawRow | None:
    """`t/s`, or where a fork has a column a phase (`prompt t/s`, `gen t/s`) those that the test ran.

    The names of rate columns that stay unread are under _UNREAD; None where no rate can be read.
    """
    if "t/s" in cells:
        speed = _SPEED.match(cells["t/s"])
        unread = [name for name in cells if name != "t/s"]
        return speed and {"avg_ts": speed[1], "stddev_ts": speed[2], _UNREAD: unread}
    size = _TEST.match(test)
    if size is None:
        return None
    n_tokens = {phase: int(size[phase] or 0) for phase in ("pp", "tg")}
    columns = {_phase_of(name): name for name in cells}
    if not all(phase in columns for phase, n in n_tokens.items() if n):
        return None
    speeds = {phase: _SPEED.match(cells[columns[phase]]) for phase, n in n_tokens.items() if n}
    read = [columns[phase] for phase in speeds]
    unread = [name for name, cell in cells.items() if name not in read and _SPEED.match(cell)]
    if not all(speeds.values()):
        return None
    if len(speeds) == 1:
        (speed,) = speeds.values()
        return speed and {"avg_ts": speed[1], "stddev_ts": speed[2], _UNREAD: unread}
    seconds = {f"t_{phase}": n_tokens[phase] / float(found[1]) for phase, found in speeds.items() if found}
    return {**n_tokens, "n_kv": int(size["d"] or 0), **seconds, _UNREAD: unread}


def _phase_of(column: str) -> str:
    """The phase that a rate column is of: `prompt t/s` pp, `gen t/s` or `eval t/s` tg."""
    first = column.split()[0].lower()
    return {"prompt": "pp", "prefill": "pp", "pp": "pp", "gen": "tg", "eval": "tg", "decode": "tg"}.get(first, first)


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
