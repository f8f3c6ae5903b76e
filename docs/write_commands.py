"""Writes the help of every command into one Markdown file: `python -m docs.write_commands docs/commands.md`, part of
`make docs`. It needs the whole command line, so it stands outside the packages.
"""

from __future__ import annotations

from pathlib import Path

import click

from hprof.command_line import cli

_WIDTH = 78  # in characters; else the text would depend on the terminal


def reference() -> str:
    """All commands' help, as Markdown."""
    parts = ["# Commands\n\nWritten by `make docs` from the commands' own help.\n"]
    context = click.Context(cli, info_name="hprof", **cli.context_settings)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if command is not None:
            parts.append(f"## hprof {name}\n\n```\n{_help(command, context, name)}\n```\n")
    return "\n".join(parts)


def _help(command: click.Command, parent: click.Context, name: str) -> str:
    settings = {key: parent.__dict__[key] for key in ("help_option_names", "show_default")}
    return command.get_help(click.Context(command, parent=parent, info_name=name, terminal_width=_WIDTH, **settings))


@click.command()
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
def main(target: Path) -> None:
    """Write the help of every command into the file TARGET, as Markdown."""
    target.write_text(reference(), encoding="utf-8")
    click.echo(f"Wrote {target}")


if __name__ == "__main__":
    main()
