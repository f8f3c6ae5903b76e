"""Which settings the two sides do not share, the telling ones first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from executor.units import number_ranges, shortened
from profiler.compare.data import Difference
from profiler.manifest import Manifest, is_number

# in the order to show them
_PARTS: Final = (
    "model",
    "placement",
    "machine",
    "environment",
    "grid",
    "seeds",
    "link_h2d_gb_s",
    "source",
    "hprof_version",
)
_MAX_DEPTH: Final = 6
_MAX_TEXT: Final = 160
_MAX_ITEMS: Final = 64
_MAX_LAYERS: Final = 1000
# measured figures are never equal twice
_LINK_TOLERANCE: Final = 0.02
_LOAD_TOLERANCE: Final = 1.0  # what one busy process adds


def differences(a: Manifest, b: Manifest, arms: Mapping[str, str]) -> list[Difference]:
    """Settings that differ; `arms` pairs the arms of A with those of B whose options are held against each other."""
    left, right = (dict(_settings(manifest, names)) for manifest, names in ((a, list(arms)), (b, list(arms.values()))))
    keys = list(dict.fromkeys([*left, *right]))
    return [
        Difference(key, _short(key, left.get(key)), _short(key, right.get(key)))
        for key in keys
        if left.get(key) != right.get(key) and not _is_near(key, left.get(key), right.get(key))
    ]


def _settings(manifest: Manifest, arms: list[str]) -> Iterator[tuple[str, Any]]:
    by_name = {arm.name: arm for arm in manifest.arms}
    for position, name in enumerate(arms):
        key = f"arm {position + 1}" if len(arms) > 1 else "arm"
        yield key, name
        if (arm := by_name.get(name)) is not None:
            yield f"{key}.effective", arm.effective
            yield from flattened(f"{key}.options", arm.options)
    values = asdict(manifest)
    for part in _PARTS:
        yield from flattened(part, values[part])
    yield from flattened("llama-bench", manifest.extra.get("llama_bench", {}))


def flattened(key: str, value: object, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """A setting of settings as dotted names with plain values; a list of mappings as its count and joined values."""
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        yield f"{key}.count", len(value)
        value = _joined(value[:_MAX_ITEMS])
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        for name, inner in value.items():
            yield from flattened(f"{key}.{name}", inner, depth + 1)
    elif value != []:
        yield key, value


def _joined(items: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Of GPUs and the like one value a key: the one that all share, else `2 x H100, 1 x A100`."""
    joined: dict[str, Any] = {}
    for name in dict.fromkeys(name for item in items for name in item):
        values = [item.get(name) for item in items]
        counts = Counter(setting_text(name, value) for value in values)
        same = len(counts) == 1
        joined[name] = values[0] if same else ", ".join(f"{n} x {text}" for text, n in counts.items())
    return joined


def _is_near(key: str, a: object, b: object) -> bool:
    if not is_number(a) or not is_number(b):
        return False
    tolerances = {"link_h2d_gb_s": _LINK_TOLERANCE * max(a, b), "machine.load_1min": _LOAD_TOLERANCE}
    return abs(a - b) <= tolerances.get(key, 0)


def setting_text(key: str, value: object) -> str:
    """A setting on one line: layers as ranges, `1-28, 30`; other lists item by item."""
    if not isinstance(value, list):
        return str(value)
    text = number_ranges(value) if _are_layers(key, value) else " ".join(map(str, value))
    return shortened(text, _MAX_TEXT)


def _are_layers(key: str, value: object) -> bool:
    return key.endswith("layers") and isinstance(value, list) and all(type(item) is int for item in value)


def _short(key: str, value: Any) -> Any:
    """Layers stay numbers, however many a model has: they are told as ranges, and programs read the list."""
    if _are_layers(key, value) and len(value) <= _MAX_LAYERS:
        return value
    text = str(value)
    return value if len(text) <= _MAX_TEXT else shortened(text, _MAX_TEXT)
