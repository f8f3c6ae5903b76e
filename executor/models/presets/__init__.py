"""Models known by shape: one TOML file each in this folder, whose keys are the fields of executor/model.py's
dataclasses.

```toml
source = "where the numbers come from"
notes = ["what is approximated"]
[quant]           # weights, and optionally experts and embeddings
[model]           # ModelShape's fields but for the layers
[mixers.NAME]     # kind = "attention" | …, then that dataclass's fields
[ffns.NAME]       # kind = "dense" | "moe", then its fields
[[layers]]        # `repeat` times the cycle of `mixers` (names), each with the FFN `ffn`
```
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final, TypeVar

from executor.errors import HprofError, did_you_mean
from executor.model import AttentionShape, DeltaNetShape, DenseFfn, Ffn, LayerShape, Mixer, MlaShape, ModelShape, MoeFfn
from executor.models.checks import check_shape
from executor.models.synthetic import QuantPlan

_MIXERS: Final[dict[str, type[Mixer]]] = {
    "attention": AttentionShape,
    "delta_net": DeltaNetShape,
    "mla": MlaShape,
}
_FFNS: Final[dict[str, type[Ffn]]] = {"dense": DenseFfn, "moe": MoeFfn}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Preset:
    """A model's shape, the quant types it is usually published in, and where the numbers come from."""

    shape: ModelShape
    quant: QuantPlan
    source: str


def preset_names() -> list[str]:
    """All presets, in alphabetical order."""
    files = resources.files(__package__).iterdir()
    return sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml"))


def load_preset(name: str) -> Preset:
    """The preset called `name`; HprofError names near ones where there is none."""
    if name not in preset_names():
        hint = did_you_mean(name, preset_names()) or f"presets are {', '.join(preset_names())}."
        raise HprofError(f"There is no model file and no preset {name[:80]!r}; {hint}")
    text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return parse_preset(tomllib.loads(text), name)


def parse_preset(table: Mapping[str, Any], name: str) -> Preset:
    """A preset from its parsed TOML; HprofError names the table and key that are wrong."""
    where = f"preset {name}"
    mixers = {key: _kind(_MIXERS, value, f"{where}: mixers.{key}") for key, value in table["mixers"].items()}
    ffns = {key: _kind(_FFNS, value, f"{where}: ffns.{key}") for key, value in table["ffns"].items()}
    layers = tuple(layer for entry in table["layers"] for layer in _layers(entry, mixers, ffns))
    notes = tuple(table.get("notes", ()))
    model = build(ModelShape, table["model"], f"{where}: model", name=name, layers=layers, notes=notes)
    quant = table["quant"]
    plan = QuantPlan(
        quant["weights"],
        quant.get("experts", quant["weights"]),
        quant.get("embeddings", quant["weights"]),
    )
    return Preset(check_shape(model, where), plan, table["source"])


def _kind(kinds: Mapping[str, type[Any]], table: Mapping[str, Any], where: str) -> Any:
    kind = table.get("kind", "")
    if kind not in kinds:
        raise HprofError(f"{where}: kind is {kind!r}, but must be one of {', '.join(kinds)}.")
    return build(kinds[kind], {key: value for key, value in table.items() if key != "kind"}, where)


def _layers(entry: Mapping[str, Any], mixers: Mapping[str, Mixer], ffns: Mapping[str, Ffn]) -> Iterable[LayerShape]:
    cycle = [LayerShape(mixers[name], ffns[entry["ffn"]]) for name in entry["mixers"]]
    return cycle * int(entry["repeat"])


def build(cls: type[T], table: Mapping[str, object], where: str, **given: Any) -> T:
    """An instance of `cls` from `table` and `given`; HprofError for an unknown, missing or mistyped key."""
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for key in table:
        if key not in fields or key in given:
            near = did_you_mean(key, fields)
            raise HprofError(f"{where}: unknown key {key!r}{f', {near}' if near else ''}")
    values = {key: _convert(hints[key], value, f"{where}.{key}") for key, value in table.items()} | given
    missing = [n for n, f in fields.items() if n not in values and f.default is dataclasses.MISSING]
    if missing:
        raise HprofError(f"{where}: the key {missing[0]!r} is missing.")
    return cls(**values)


def _convert(kind: object, value: object, where: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        return build(kind, value, where)
    if kind is float and type(value) is int:
        return float(value)
    origin = typing.get_origin(kind)
    if origin is tuple and isinstance(value, list):
        return tuple(value)
    allowed = typing.get_args(kind)
    if origin is typing.Literal:
        fits = value in allowed
    elif origin in (types.UnionType, typing.Union):
        fits = type(value) in allowed
    else:
        fits = type(value) is kind
    if not fits:
        wanted = ", ".join(map(str, allowed)) if allowed else getattr(kind, "__name__", str(kind))
        raise HprofError(f"{where} is {value!r}, but must be {wanted}.")
    return value


__all__ = ["Preset", "load_preset", "preset_names"]
