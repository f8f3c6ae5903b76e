"""Words: verdicts as sentences, labels of arms and cells, and text of unknown origin made harmless."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Final

from executor.units import format_factor, listed
from profiler.arithmetic.stats import Comparison
from profiler.manifest import ManifestArm
from profiler.metrics import FIGURES, Figure
from profiler.metrics.passes import CellKey
from profiler.plain_text import printable
from profiler.report.verdicts import SAME_WORK, UNCLEAR, times_as_fast, verdict_word

SIGNS: Final = {"faster": "▲", "slower": "▼", "no difference": "="}
"""Before a figure that has a verdict; where it has none, words say why."""
_UNCHANGED: Final = {  # of one figure, of several
    "no difference": ("stayed the same", "stayed the same"),
    SAME_WORK: ("is the same work in both", "are the same work in both"),
    UNCLEAR: ("is unclear", "are unclear"),
}

_MARKDOWN: Final = re.compile(r"([\\`*_{}\[\]()#+\-.!|~<>$:&])")


def escape_markdown(text: object) -> str:
    """Text that Markdown shows as it is: no emphasis, link, image, formula or HTML of the capture's choosing."""
    return _MARKDOWN.sub(r"\\\1", " ".join(printable(str(text)).split()))


def with_code(text: object) -> str:
    """As `escape_markdown`, but what stands between backticks as code, as it was meant."""
    parts = " ".join(printable(str(text)).split()).split("`")
    if len(parts) % 2 == 0:  # one that has no partner
        return escape_markdown(text)
    return "".join(f"`{part}`" if at % 2 and part else _MARKDOWN.sub(r"\\\1", part) for at, part in enumerate(parts))


def for_plotly(text: object) -> str:
    """Text that plotly shows as it is, which otherwise reads a few HTML tags."""
    return html.escape(printable(str(text)), quote=False)


def arm_label(arm: ManifestArm) -> str:
    """`on (prefetch)`, where the arm's meaning is known."""
    return f"{arm.name} ({arm.traits.meaning})" if arm.traits is not None else arm.name


def about_layers(layers: float, which: str = "") -> str:
    """`1 layer`, `2 layers`, `13.6 layers`; `which` stands before the noun: `1 more layer`."""
    number = f"{layers:.1f}".removesuffix(".0")
    return f"{number} {which}layer{'' if number == '1' else 's'}"


def whole_cell(cell: CellKey) -> str:
    """`ubatch 64 · depth 0 · prompt 512 + 16 generated`."""
    sizes = (("ubatch", cell.n_ubatch), ("depth", cell.n_depth))
    parts = [f"{name} {value:,}" for name, value in sizes if value is not None]
    tokens = [f"prompt {cell.n_prompt:,}"] if cell.n_prompt else []
    tokens += [f"{cell.n_gen:,} generated"] if cell.n_gen else []
    return " · ".join([*parts, *([" + ".join(tokens)] if tokens else [])]) or "all passes"


def cell_key(cell: CellKey) -> str:
    """The cell in an address: `p512-n16-ub64-d0`."""
    parts = (("p", cell.n_prompt), ("n", cell.n_gen), ("ub", cell.n_ubatch), ("d", cell.n_depth))
    return "-".join(f"{name}{value}" for name, value in parts if value is not None) or "all"


def headline(
    a: str,
    b: str,
    who: str,
    compared: Mapping[str, Comparison | None],
    placed: tuple[str, str] | None = None,
    led_by: tuple[str, Figure] | None = None,
) -> str:
    """`Prefetch made the first token 0.89 x and prefill 1.31 x as fast as off; decode stayed the same.` Figures that
    changed alike share their factor.

    who: B as the subject of a sentence. placed: where the arms' weights lie elsewhere, in words (`8 host layers`):
    then the policy made nothing alone, and it reads `on@2 (16 host layers) against off (8 host layers): the first
    token 0.63 x as fast.` What was seen is told where no verdict is due, too. led_by: what programs printed themselves
    and the report leads with, which is told first.
    """
    named = {"ttft_ns": "the first token", "prefill_tokens_per_s": "prefill", "decode_tokens_per_s": "decode"}
    if not any(compared.get(name) for name in named):
        named = {"wall_ns": "the pass"}  # all that a trace tells whose passes have no phases
    figures: Mapping[str, Figure] = FIGURES
    if led_by is not None:
        named, figures = {led_by[0]: led_by[1].label, **named}, {**FIGURES, led_by[0]: led_by[1]}
    known = {name: one for name in named if (one := compared.get(name)) is not None}
    if not known:
        return f"{a} and {b} cannot be compared here."
    factors = {name: format_factor(times_as_fast(one.ratio, figures[name].better)) for name, one in known.items()}

    def as_fast_each(names: Sequence[str]) -> str:
        alike: dict[str, list[str]] = {}
        for name in names:
            alike.setdefault(factors[name], []).append(named[name])
        return f"{listed(f'{listed(those)} {factor} x' for factor, those in alike.items())} as fast"

    changed = [name for name, one in known.items() if one.verdict in ("faster", "slower")]
    fast = [as_fast_each(changed)] if changed else []
    if placed:
        clauses = [f"{b} ({placed[1]}) against {a} ({placed[0]})", *fast]
    else:
        clauses = [f"{who} made {fast[0]} as {a}" if fast else f"{who} against {a}"]
    if seen := [name for name, one in known.items() if one.n_missing]:
        clauses.append(f"{as_fast_each(seen)}, by too few runs for a verdict")
    if other := [name for name, one in known.items() if one.is_other_work]:
        clauses.append(f"{as_fast_each(other)}, but on other work")
    for word, told in _UNCHANGED.items():
        if alike := [named[name] for name, one in known.items() if verdict_word(one) == word]:
            clauses.append(f"{listed(alike)} {told[len(alike) > 1]}")
    begins_with_names = bool(placed) or not changed
    return f"{clauses[0]}: {'; '.join(clauses[1:])}." if begins_with_names else f"{'; '.join(clauses)}."


def subject(arm: ManifestArm) -> str:
    """The arm as the subject of a sentence: `Prefetch`; by its name where its meaning is not known."""
    return arm.traits.subject if arm.traits is not None else f"The arm {arm.name}"
