"""Options that several commands share, so that each is spelled and explained once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_TRACES: Final = "traces"  # where captures land, relative to where hprof is called


def json_option(command: Command) -> Command:
    """`--json`, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def output_option(command: Command) -> Command:
    """`-o/--output DIR`, as the parameter `output` (None where it is left out)."""
    text = "The capture's folder, or an fsspec URL.  [default: traces/<name>]"
    return click.option("-o", "--output", metavar="DIR", show_default=False, help=text)(command)


def force_option(command: Command) -> Command:
    """`--force`, as the parameter `force`."""
    return click.option("--force", is_flag=True, help="Replace a capture that is already there.")(command)


def seed_option(command: Command) -> Command:
    """`--seed N`, as the parameter `seed`."""
    return click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of all random choices.")(command)


def noise_option(command: Command) -> Command:
    """`--noise SHARE`, as the parameter `noise`."""
    text = "Relative change that counts as none, e.g. 0.01 for 1 %."
    return click.option("--noise", type=click.FloatRange(0, 1, max_open=True), default=0.01, help=text)(command)


def dask_option(work: str) -> Callable[[Command], Command]:
    """`--dask ADDRESS`, as the parameter `dask` (None where it is left out); `work` is what the workers do."""
    text = f"Have the workers of this Dask scheduler {work}."
    return click.option("--dask", metavar="ADDRESS", help=text)
