"""Groups rows into arms and turns them into the `passes` table.

Arms are the settings that differ between rows, in as few words as tell the rows apart. A pass is one repetition,
or a row's mean where the format lists none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from executor.errors import HprofError
from executor.policies import PREFETCH_ARMS
from profiler.importers.llama_bench.outputs import RUN_TITLE
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
    RUN_TITLE: "run",
}
# These follow from other settings or from the test: arms only where nothing else tells two rows apart.
_WEAK: Final = (
    *("n_batch", "n_threads_batch", "n_kv_max", "backends", "gpu_info", "cpu_info"),
    *("build_number", "model_type", "model_size", "model_n_params"),
)


def arm_settings(
    rows: Sequence[BenchRow], chosen: Sequence[str] = (), unshared: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """The names of the settings that set arms apart: `chosen` by the user, else all that differ and matter.

    unshared: fields that only some of the rows' formats have, whose absence says nothing.
    """
    differing = [name for name in _by_priority(rows) if len(_values(rows, name)) > 1 and name not in unshared]
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
    if list(names) == ["prefetch_weights"] and (prefetch := row.settings.get("prefetch_weights")) in PREFETCH_ARMS:
        return PREFETCH_ARMS[int(prefetch)]
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


def run_boots(rows: Sequence[BenchRow], arms: Sequence[str]) -> list[int]:
    """The boot of each row: the first, second ... of the file's outputs that ran its arm in its cell."""
    boots: dict[object, dict[int, int]] = {}
    for row, arm in zip(rows, arms, strict=True):
        of_arm = boots.setdefault((arm, cell(row)), {})
        of_arm.setdefault(row.run, len(of_arm))
    return [boots[arm, cell(row)][row.run] for row, arm in zip(rows, arms, strict=True)]


def pass_columns(
    rows: Sequence[BenchRow], arms: Sequence[str], boots: Sequence[int], *, first_id: int = 0, start_ns: int = 0
) -> dict[str, list[Any]]:
    """The table's columns for rows of these arms and boots, from `start_ns` on.

    Samples are laid end to end: what lay between them (loading, warming up) was not recorded.
    """
    columns: dict[str, list[Any]] = {}
    repetitions: Counter[Any] = Counter()
    now_ns = start_ns
    for row, arm, boot in zip(rows, arms, boots, strict=True):
        for prefill_ns, decode_ns, total_ns in _times(row):
            repetition = repetitions[arm, boot, cell(row)]
            repetitions[arm, boot, cell(row)] += 1
            number = first_id + len(columns.get("arm", ()))
            values = {
                "pass_id": number,
                "arm": arm,
                "n_ubatch": row.n_ubatch,
                "n_depth": row.n_depth,
                "n_prompt": row.n_prompt,
                "n_gen": row.n_gen,
                "repetition": repetition,
                "order": number,
                "boot": boot,
                "warmup": False,
                "t_start": now_ns,
                "t_end": now_ns + total_ns,
                "prefill_ns": prefill_ns,
                "decode_ns": decode_ns,
                "n_decoded": row.n_gen if decode_ns is not None else None,
            }
            for name, value in values.items():
                columns.setdefault(name, []).append(value)
            now_ns += total_ns
    return columns


def _times(row: BenchRow) -> list[tuple[int | None, int | None, int]]:
    """(prefill, decode, total) of each pass; a test that prompts and generates has one time for both."""
    if row.parts_ns is not None:
        return [(*row.parts_ns, sum(row.parts_ns))]
    return [(ns if row.n_gen == 0 else None, ns if row.n_prompt == 0 else None, ns) for ns in row.samples_ns]
