"""What a shell offers after Tab: presets, arms, quant types and captures, beside files (docs/shell.md turns it on).

Nothing heavy is imported: a shell waits for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from click.shell_completion import BashComplete, CompletionItem, FishComplete, ZshComplete, add_completion_class

from profiler import DEFAULT_TRACES

if TYPE_CHECKING:
    import click

_MANIFEST: Final = "manifest.json"
_MOST: Final = 200  # captures that are offered
_BARE: Final = re.compile(r"[\w@%+=:,./-]+")  # what a shell takes as it is; it runs `$(…)` of a name that it completed


class _Bash(BashComplete):
    """click's, but for `--arms=off,h`, which bash hands over as three words, and of which it replaces the last."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        if incomplete == "=":
            return args, ""
        if args[-1:] == ["="]:
            args = args[:-1]
        return args, incomplete


class _Zsh(ZshComplete):
    """click's, but for `--arms=off,h`, which zsh replaces as one word."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        return _behind_its_option(super().get_completions(args, incomplete), incomplete)


class _Fish(FishComplete):
    """click's, but for `--arms=off,h`, which fish replaces as one word, and for what it does to a comma list: it offers
    no more of `off,hot` than `off`.
    """

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        return _behind_its_option(super().get_completions(args, incomplete), incomplete)


def _behind_its_option(items: list[CompletionItem], incomplete: str) -> list[CompletionItem]:
    option, equals, _ = incomplete.partition("=")
    if not equals or not option.startswith("-"):
        return items
    return [CompletionItem(f"{option}={item.value}", item.type, item.help) for item in items if item.type == "plain"]


def complete_as_shells_do() -> None:
    """Let a shell be answered in the words that it replaces: a list with commas, a value behind `--option=`."""
    for shell in (_Bash, _Zsh, _Fish):
        add_completion_class(shell)


def complete_models(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Presets and the GGUF files of the folder; else whatever files the shell finds."""
    from executor.models.presets import preset_names

    found = _starting([*preset_names(), *_gguf_files(Path(incomplete).parent)], incomplete)
    return found or [CompletionItem(incomplete, type="file")]


def complete_arms(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The next arm of a comma list, without those that it has."""
    from executor.policies import arm_names

    before, comma, last = incomplete.rpartition(",")
    chosen = before.split(",") if before else []
    offered = [f"{before}{comma}{name}" for name in arm_names() if name not in chosen]
    return _starting(offered, f"{before}{comma}{last}")


def complete_quants(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Quant types and llama.cpp's mixtures, in whatever case they are begun."""
    from executor.models.mixtures import MIXTURE_NAMES
    from executor.quants.table import QUANTS

    return [CompletionItem(name) for name in (*QUANTS, *MIXTURE_NAMES) if name.startswith(incomplete.upper())]


def complete_captures(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Captures in the folder that is begun, or in `traces` where nothing is; where none is found, folders.

    A name that a shell would have to quote is left to its own completion of folders, which quotes it. Not both at once:
    zsh takes away what was typed where an offered name and a folder are the same.
    """
    folder = Path(incomplete).parent if os.sep in incomplete else Path(DEFAULT_TRACES)
    found = _captures_in(folder) + (_captures_in(Path(incomplete)) if incomplete.endswith(os.sep) else [])
    return _starting(found, incomplete) or [CompletionItem(incomplete, type="dir")]


def _gguf_files(folder: Path) -> list[str]:
    try:
        return [path for path in map(str, sorted(folder.glob("*.gguf"))) if _BARE.fullmatch(path)][:_MOST]
    except OSError:
        return []


def _captures_in(folder: Path) -> list[str]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        return []
    paths = [str(folder / name) for name in names if (folder / name / _MANIFEST).is_file()]
    return [path for path in paths if _BARE.fullmatch(path)][:_MOST]


def _starting(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
