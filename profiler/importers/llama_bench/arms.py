"""Decides which settings make arms: those that differ between rows, in as few words as tell the rows apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from executor.errors import HprofError
from profiler.importers.llama_bench.rows import BenchRow, Setting

DEFAULT_ARM: Final = "llama-bench"
# field:flag, spelled as on llama-bench's command line; of several that change together the first names the arm
_SHORT: Final = {
    "prefetch_weights": "pw",
    "tensor_buft_overrides": "ot",
    "override_tensor": "ot",
    "n_cpu_moe": "ncmoe",
    "load_mode": "lm",
    "use_mmap": "mmp",
    "use_direct_io": "dio",
    "lazy_mode": "lzm",
    "n_gpu_layers": "ngl",
    "no_op_offload": "nopo",
    "no_kv_offload": "nkvo",
    "flash_attn": "fa",
    "type_k": "ctk",
    "type_v": "ctv",
    "split_mode": "sm",
    "main_gpu": "mg",
    "tensor_split": "ts",
    "devices": "dev",
    "no_host": "no-host",
    "repack": "repack",
    "fit_target": "fitt",
    "fit_min_ctx": "fitc",
    "n_threads": "t",
    "embeddings": "embd",
    "build_commit": "build",
    "model_filename": "m",
    "n_batch": "b",
}
# These follow from other settings or from the test: arms only where nothing else tells two rows apart.
_WEAK: Final = (
    *("n_batch", "n_threads_batch", "n_kv_max", "backends", "gpu_info", "cpu_info"),
    *("build_number", "model_type", "model_size", "model_n_params"),
)


def arm_settings(rows: Sequence[BenchRow], chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the settings that set arms apart: `chosen` by the user, else all that differ and matter."""
    differing = [name for name in _by_priority(rows) if len(_values(rows, name)) > 1]
    if chosen:
        _check_known(rows, chosen)
        return tuple(chosen)
    strong = _without_echoes(rows, [name for name in differing if name not in _WEAK])
    weak = [name for name in _WEAK if name in differing]
    while conflict := _conflict(rows, strong):
        deciding = next(
            (name for name in weak if conflict[0].settings.get(name) != conflict[1].settings.get(name)), None
        )
        if deciding is None:
            break
        strong.append(deciding)
    return tuple(strong)


def unsaid_differences(rows: Sequence[BenchRow], names: Sequence[str]) -> list[str]:
    """Settings that differ between rows of one arm and one test, which are then taken for repetitions."""
    conflict = _conflict(rows, names)
    if conflict is None:
        return []
    first, second = (row.settings for row in conflict)
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def arm_name(row: BenchRow, names: Sequence[str]) -> str:
    """`off` and `on` for prefetch alone, else the settings as flags: "ncmoe=99 lm=mmap"."""
    if list(names) == ["prefetch_weights"] and row.settings.get("prefetch_weights") in (0, 1):
        return "on" if row.settings["prefetch_weights"] else "off"
    words = [f"{_SHORT.get(name, name)}={_word(row.settings.get(name))}" for name in names]
    return " ".join(words) or DEFAULT_ARM


def cell(row: BenchRow) -> tuple[int, int, int, int | None]:
    """What was asked of the model: rows of one cell are comparable."""
    return row.n_prompt, row.n_gen, row.n_depth, row.n_ubatch


def _by_priority(rows: Sequence[BenchRow]) -> list[str]:
    present = dict.fromkeys(name for row in rows for name in row.settings)
    return [name for name in _SHORT if name in present] + [name for name in present if name not in _SHORT]


def _values(rows: Sequence[BenchRow], name: str) -> set[Setting]:
    return {row.settings.get(name) for row in rows}


def _without_echoes(rows: Sequence[BenchRow], names: Sequence[str]) -> list[str]:
    """Of settings that change together only the first."""
    kept: dict[tuple[int, ...], str] = {}
    for name in names:
        first_seen: dict[Setting, int] = {}
        pattern = tuple(first_seen.setdefault(row.settings.get(name), len(first_seen)) for row in rows)
        kept.setdefault(pattern, name)
    return list(kept.values())


def _conflict(rows: Sequence[BenchRow], names: Sequence[str]) -> tuple[BenchRow, BenchRow] | None:
    """Two rows of one cell and one arm whose settings differ all the same."""
    seen: dict[object, BenchRow] = {}
    for row in rows:
        first = seen.setdefault((cell(row), tuple(row.settings.get(name) for name in names)), row)
        if first.settings != row.settings:
            return first, row
    return None


def _check_known(rows: Sequence[BenchRow], chosen: Sequence[str]) -> None:
    known = {name for row in rows for name in row.settings}
    if unknown := [name for name in chosen if name not in known]:
        raise HprofError(
            f"no row has a field '{unknown[0]}' to make arms of; the fields are {', '.join(sorted(known))}."
        )


def _word(value: Setting) -> str:
    text = "default" if value is None else str(value)
    return text.rsplit("/", 1)[-1] if text.endswith(".gguf") else text
