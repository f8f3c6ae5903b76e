"""`hprof models`: what there is to run, and what a model consists of. Lists presets and the model files at hand, and
one model's tensors by kind. No part of it needs torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from executor.errors import HprofError
from executor.model import Model, TensorInfo
from executor.models.fetch import DEFAULT_DEST
from executor.models.load import load_model
from executor.models.presets import preset_names
from executor.placement.place import EVERYTHING_RESIDENT, Placement, place
from executor.units import format_bytes
from profiler.cli.completion import complete_models, complete_quants
from profiler.cli.options import json_option
from profiler.cli.printing import UNLIMITED, console, say
from profiler.facts import model_fields

if TYPE_CHECKING:
    from profiler.report.blocks import Table


@click.command()
@click.argument("name", required=False, shell_complete=complete_models)
@click.option(
    "--quant",
    metavar="TYPE",
    shell_complete=complete_quants,
    help="Describe a preset or config in this quant type or mixture.",
)
@json_option
def command(name: str | None, quant: str | None, as_json: bool) -> None:
    """List the presets and the GGUF files at hand, or describe the model NAME (a preset, a GGUF file or a config.json).

    Files are looked for in .cache/models, where `make model` puts one, and in llama.cpp's cache folder.

    \b
    hprof models
    hprof models qwen3-30b-a3b --quant Q4_K_M
    """
    from dataclasses import asdict

    if name is None:
        entries = list_models()
        _show({"schema": 1, "models": [asdict(entry) for entry in entries]} if as_json else _list_table(entries))
        return
    described = describe_model(load_model(name, quant, computes=False))
    _show(described if as_json else _model_table(described))
    if not as_json:
        say(_summary(described))


def _show(what: dict[str, Any] | Table) -> None:
    if isinstance(what, dict):
        from profiler.plain_text import json_text

        say(json_text(what))
        return
    from profiler.report.terminal import FittingTable

    drawn = console()
    drawn.width = drawn.width if drawn.is_terminal else UNLIMITED
    drawn.print(FittingTable(what))


def _list_table(entries: Sequence[ModelEntry]) -> Table:
    from profiler.report.blocks import Table

    table = Table("", ["-m", "architecture", "layers", "params", "size"], [], n_left=2)
    for entry in entries:
        if entry.problem is not None:
            table.rows.append([entry.origin, f"unreadable: {entry.problem}", "", "", ""])
            continue
        sizes = [str(entry.n_layers), _millions(entry.n_parameters or 0), format_bytes(entry.n_bytes or 0)]
        table.rows.append([entry.origin.removeprefix("preset:"), entry.architecture or "", *sizes])
    return table


def _model_table(described: dict[str, Any]) -> Table:
    from profiler.report.blocks import Table

    table = Table("", ["tensor", "type", "shape", "default -ot", "count", "each", "all"], [], n_left=4)
    for kind in described["tensors"]:
        sizes = [str(kind["count"]), format_bytes(kind["n_bytes"]), format_bytes(kind["total_bytes"])]
        shape = " x ".join(map(str, kind["shape"]))
        table.rows.append([kind["name"], kind["quant"], shape, "host" if kind["on_host"] else "", *sizes])
    return table


def _summary(described: dict[str, Any]) -> str:
    layers = ", ".join(f"{count} x {kind}" for kind, count in described["layer_kinds"].items())
    placement = described["default_placement"]
    lines = [
        f"{described['name']} ({described['architecture']}): {_millions(described['n_parameters'])} parameters, "
        f"{format_bytes(described['n_bytes'])}, {described['n_layers']} layers ({layers}), "
        f"hidden {described['hidden']}, vocabulary {described['n_vocab']}, context {described['context_length']}.",
        f"Default placement ({placement['spelled']}): {format_bytes(placement['host_bytes'])} in host memory, "
        f"{format_bytes(placement['resident_bytes'])} resident.",
        *(f"Note: {note}." for note in described["notes"]),
    ]
    return "\n".join(lines)


def _millions(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.1f} M"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of the list. `problem` says why a file cannot be read, else None."""

    name: str
    origin: str
    architecture: str | None
    n_layers: int | None
    n_parameters: int | None
    n_bytes: int | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TensorKind:
    """All tensors of one short name, quant type and shape; `n_bytes` of one of them."""

    name: str
    quant: str
    shape: tuple[int, ...]
    count: int
    n_bytes: int
    on_host: bool  # with the default -ot

    @property
    def total_bytes(self) -> int:
        return self.count * self.n_bytes


def list_models() -> list[ModelEntry]:
    """The presets, then the GGUF files in `.cache/models` and in llama.cpp's cache folder."""
    return [_entry(name) for name in preset_names()] + [_entry(str(path)) for path in _files()]


def describe_model(model: Model) -> dict[str, Any]:
    """Name, layers, tensors by kind, and what the default `-ot` keeps in host memory."""
    kinds = tensor_kinds(model)
    host_bytes = sum(kind.total_bytes for kind in kinds if kind.on_host)
    return {
        "schema": 1,
        **model_fields(model),
        "n_parameters": model.n_parameters,
        "context_length": model.shape.context_length,
        "tensors": [
            {"name": k.name, "quant": k.quant, "shape": list(k.shape), "count": k.count, "n_bytes": k.n_bytes}
            | {"total_bytes": k.total_bytes, "on_host": k.on_host}
            for k in kinds
        ],
        "default_placement": {
            "spelled": _default_placement(model).spelled,
            "host_bytes": host_bytes,
            "resident_bytes": model.n_bytes - host_bytes,
        },
    }


def tensor_kinds(model: Model) -> list[TensorKind]:
    """The model's tensors by kind, the largest first."""
    host = _default_placement(model).host
    groups: dict[tuple[str, str, tuple[int, ...]], list[TensorInfo]] = {}
    for tensor in model.tensors.values():
        groups.setdefault((tensor.short_name, tensor.quant, tensor.shape), []).append(tensor)
    kinds = [
        TensorKind(name, quant, shape, len(found), found[0].n_bytes, found[0].name in host)
        for (name, quant, shape), found in groups.items()
    ]
    return sorted(kinds, key=lambda kind: -kind.total_bytes)


def _default_placement(model: Model) -> Placement:
    try:
        return place(model.tensors)
    except HprofError:
        return EVERYTHING_RESIDENT  # no tensor that the default pattern knows


def _entry(spec: str) -> ModelEntry:
    name = Path(spec).name
    try:
        model = load_model(spec, computes=False)
    except HprofError as error:
        return ModelEntry(name, spec, None, None, None, None, str(error))
    shape = model.shape
    return ModelEntry(name, model.origin, shape.architecture, len(shape.layers), model.n_parameters, model.n_bytes)


def _files() -> Iterator[Path]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for folder in (DEFAULT_DEST, Path(os.environ.get("LLAMA_CACHE") or cache / "llama.cpp")):
        yield from sorted(path for path in folder.glob("*.gguf") if path.is_file())
