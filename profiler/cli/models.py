"""`hprof models`: what there is to run, and what a model consists of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

    from profiler.cli.model_listing import ModelEntry


@click.command()
@click.argument("name", required=False)
@click.option("--quant", metavar="TYPE", help="Describe a preset or config in this quant type.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, quant: str | None, as_json: bool) -> None:
    """List the presets and the GGUF files at hand, or describe the model NAME (a preset, a GGUF file or a config.json).

    Files are looked for in .cache/models, where `make model` puts one, and in llama.cpp's cache folder.
    """
    from dataclasses import asdict

    from executor.models.load import load_model
    from profiler.cli.model_listing import describe_model, list_models

    if name is None:
        entries = list_models()
        _show({"schema": 1, "models": [asdict(entry) for entry in entries]} if as_json else _list_table(entries))
        return
    described = describe_model(load_model(name, quant))
    _show(described if as_json else _model_table(described))
    if not as_json:
        click.echo(_summary(described))


def _show(what: dict[str, Any] | Table) -> None:
    if isinstance(what, dict):
        import orjson

        click.echo(orjson.dumps(what, option=orjson.OPT_INDENT_2).decode())
        return
    from rich.console import Console

    console = Console()
    Console(width=None if console.is_terminal else 160).print(what)


def _list_table(entries: Sequence[ModelEntry]) -> Table:
    from rich.markup import escape

    table = _table("-m", "architecture", ">layers", ">parameters", ">bytes")
    for entry in entries:
        if entry.problem is not None:
            table.add_row(escape(entry.origin), escape(f"unreadable: {entry.problem}"))
            continue
        sizes = [str(entry.n_layers), _millions(entry.n_parameters or 0), _size(entry.n_bytes or 0)]
        table.add_row(escape(entry.origin.removeprefix("preset:")), entry.architecture, *sizes)
    return table


def _model_table(described: dict[str, Any]) -> Table:
    from rich.markup import escape

    table = _table("tensor", "type", "shape", ">count", ">bytes each", ">bytes", "default -ot")
    for kind in described["tensors"]:
        sizes = [str(kind["count"]), _size(kind["n_bytes"]), _size(kind["total_bytes"])]
        shape = " x ".join(map(str, kind["shape"]))
        table.add_row(escape(kind["name"]), kind["quant"], shape, *sizes, "host" if kind["on_host"] else "")
    return table


def _table(*columns: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    return table


def _summary(described: dict[str, Any]) -> str:
    layers = ", ".join(f"{count} x {kind}" for kind, count in described["layer_kinds"].items())
    placement = described["default_placement"]
    lines = [
        f"{described['name']} ({described['architecture']}): {_millions(described['n_parameters'])} parameters, "
        f"{_size(described['n_bytes'])}, {described['n_layers']} layers ({layers}), "
        f"hidden {described['hidden']}, vocabulary {described['n_vocab']}, context {described['context_length']}.",
        f"Default placement ({placement['spelled']}): {_size(placement['host_bytes'])} in host memory, "
        f"{_size(placement['resident_bytes'])} resident.",
        *(f"Note: {note}." for note in described["notes"]),
    ]
    return "\n".join(lines)


def _size(n_bytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.2f} {name}"
    return f"{n_bytes} B"


def _millions(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.1f} M"
