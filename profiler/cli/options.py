"""Options that several commands share, so that each is spelled and explained once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_TRACES: Final = "traces"  # where captures land, relative to where hprof is called
_MAX_SEED: Final = 2**32 - 1


class FiniteRange(click.FloatRange):
    """A FloatRange that refuses nan, which no bound compares with, and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def given_values(ctx: click.Context) -> dict[str, Any]:
    """The values of the parameters that the user gave, on the command line or by the environment."""
    return {
        name: value
        for name, value in ctx.params.items()
        if ctx.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)
    }


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
    return click.option("--seed", type=click.IntRange(0, _MAX_SEED), default=0, help="Seed of all random choices.")(
        command
    )


def noise_option(command: Command) -> Command:
    """`--noise SHARE`, as the parameter `noise`."""
    text = "Relative change that counts as none, e.g. 0.01 for 1 %."
    return click.option("--noise", type=FiniteRange(0, 1, max_open=True), default=0.01, help=text)(command)


def dask_option(work: str) -> Callable[[Command], Command]:
    """`--dask ADDRESS`, as the parameter `dask` (None where it is left out); `work` is what the workers do."""
    text = f"Have the workers of this Dask scheduler {work}."
    return click.option("--dask", metavar="ADDRESS", help=text)
