"""What an export says beside its events: versions, GPUs, how it was recorded, diagnostics."""

from __future__ import annotations

from typing import Any, Final

from profiler.importers.created import created_utc
from profiler.importers.nsys import enums
from profiler.importers.nsys.tables import Tables, first_present

_EXPORT_KEYS: Final = (
    *("EXPORT_SCHEMA_VERSION", "EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_PARAM_LAZY"),
    *("EXPORT_PARAM_TIME_NORMALIZE", "EXPORT_PARAM_TIME_SHIFT", "EXPORT_PARAM_TIMES_TO_EXPORT"),
    *("EXPORT_PARAM_TABLES_TO_EXPORT", "DERIVED_WINDOW_NS"),
)
_CAPTURE_KEYS: Final = (
    *("CUDA_GRAPH_TRACE_OPTIONS:MODE", "CUDA_SKIP_SOME_API_CALLS", "COLLECT_UVM_CPU_PAGE_FAULTS"),
    *("COLLECT_UVM_GPU_PAGE_FAULTS", "COLLECT_GPU_MEMORY_USAGE", "CUDA_TRACE_SCOPE"),
)
_SYSTEM_KEYS: Final = {
    "CpuDescription": "cpu",
    "CpuCores": "threads",
    "OsDescription": "os",
    "NvDriverVersion": "driver",
    "CudaDriverVersion": "cuda_driver_version",
}
_GPU_COLUMNS: Final = (
    *("id", "name", "busLocation", "totalMemory", "memoryBandwidth", "asyncEngines", "smCount", "cuDevice"),
    *("computeMajor", "computeMinor"),
)
_LOST_WORDS: Final = ("dropped", "not all", "lost", "out of memory", "overflow", "incomplete")
_MAX_MESSAGES: Final = 50
_MAX_MESSAGE_CHARS: Final = 500


def export_facts(tables: Tables) -> dict[str, str]:
    """Schema, product and the options of the export. Paths, host and user names are left behind."""
    rows = tables.small(first_present(tables, "META_DATA_EXPORT", "EXPORT_META_DATA"), ["name", "value"])
    return _chosen(rows, _EXPORT_KEYS)


def capture_facts(tables: Tables) -> dict[str, str]:
    """How the recording was set up, as far as it changes what the figures mean."""
    return _chosen(tables.small("META_DATA_CAPTURE", ["name", "value"]), _CAPTURE_KEYS)


def machine_facts(tables: Tables) -> dict[str, Any]:
    """GPUs (empty: the export does not say), driver, CPU, operating system."""
    system = tables.small("TARGET_INFO_SYSTEM_ENV", ["name", "value"])
    known = {_SYSTEM_KEYS[name]: text for name, text in _chosen(system, tuple(_SYSTEM_KEYS)).items()}
    gpus = [_gpu(row) for row in tables.small("TARGET_INFO_GPU", _GPU_COLUMNS)]
    return known | {"gpus": gpus} if gpus else known


def created(tables: Tables) -> str:
    """When the session began, as the manifest's `created_utc`; empty where the export does not say."""
    rows = tables.small("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])
    since_1970_ns = rows[0]["utcEpochNs"] if rows else None
    return created_utc(since_1970_ns if type(since_1970_ns) is int else None)


def diagnostics(tables: Tables) -> tuple[list[str], list[str]]:
    """What the profiler itself complained of, each text once: (errors and lost events, other warnings)."""
    rows = tables.small("DIAGNOSTIC_EVENT", ["severity", "text"])
    texts = {str(row["text"])[:_MAX_MESSAGE_CHARS]: row["severity"] for row in rows if row["text"] is not None}
    serious = [text for text, level in texts.items() if level == enums.DIAGNOSTIC_ERROR or _says_lost(text)]
    mild = [t for t, level in texts.items() if level == enums.DIAGNOSTIC_WARNING and t not in serious]
    return serious[:_MAX_MESSAGES], mild[:_MAX_MESSAGES]


def _says_lost(text: str) -> bool:
    return any(word in text.lower() for word in _LOST_WORDS)


def _gpu(row: dict[str, Any]) -> dict[str, Any]:
    major, minor = row["computeMajor"], row["computeMinor"]
    return {
        "index": row["cuDevice"],
        "name": _short(row["name"]),
        "bus": _short(row["busLocation"]),
        "memory_mib": row["totalMemory"] >> 20 if isinstance(row["totalMemory"], int) else None,
        "memory_bytes_per_s": row["memoryBandwidth"],
        "copy_engines": row["asyncEngines"],
        "multiprocessors": row["smCount"],
        "compute_capability": None if major is None or minor is None else f"{major}.{minor}",
    }


def _chosen(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> dict[str, str]:
    return {
        row["name"]: text
        for row in rows
        if row["name"] in keys and (text := _short(row["value"])) not in (None, "", "unknown")
    }


def _short(value: Any) -> str | None:
    return None if value is None else str(value)[:_MAX_MESSAGE_CHARS]
