"""Reads a preset: TOML whose keys are the fields of executor/shape.py's dataclasses.

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

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from executor.errors import HprofError
from executor.models.presets.build import build
from executor.models.shape_check import check_shape
from executor.models.tensors import QuantPlan
from executor.shape import (
    AttentionShape,
    DeltaNetShape,
    DenseFfn,
    Ffn,
    LayerShape,
    Mixer,
    MlaShape,
    ModelShape,
    MoeFfn,
)

_MIXERS: Final[dict[str, type[Mixer]]] = {
    "attention": AttentionShape,
    "delta_net": DeltaNetShape,
    "mla": MlaShape,
}
_FFNS: Final[dict[str, type[Ffn]]] = {"dense": DenseFfn, "moe": MoeFfn}


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
        raise HprofError(f"There is no model file and no preset {name[:80]!r}; {_hint(name, preset_names())}")
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


def _hint(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    if not near:
        return f"presets are {', '.join(known)}."
    return f"did you mean {' or '.join(near)}?" if len(near) < 3 else f"near ones: {', '.join(near)}."
