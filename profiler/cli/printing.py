"""The one way in which commands print: nothing that a file says can steer the terminal or become markup.

Commands print lines with `say`, and what rich draws on `console()`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rich.console import Console

UNLIMITED: Final = 10_000
"""The width of a list that goes into a file or pipe: a line is an entry there, as `grep` wants it."""


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print lines, those of a file made plain."""
    from profiler.plain_text import printable

    click.echo(printable(text), err=err, nl=nl)


def console(*, stderr: bool = False, width: int | None = None, file: IO[str] | None = None) -> Console:
    """A console that draws strings as they are: no markup, no emoji codes, no control characters.

    file: where to, in place of stdout or stderr.
    """
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    from profiler.plain_text import printable

    class PlainConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                # those with `control` are rich's own, as a progress bar needs them
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    return PlainConsole(stderr=stderr, file=file, width=width, markup=False, emoji=False, highlight=False)
