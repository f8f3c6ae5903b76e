"""Words: verdicts as sentences, labels of arms and cells, and text of unknown origin made harmless."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Final

from executor.units import listed
from profiler.arithmetic.stats import Comparison
from profiler.manifest import ManifestArm
from profiler.plain_text import readable
from profiler.report.cells import CellSizes

SIGNS: Final = {"faster": "▲", "slower": "▼", "no difference": "=", "inconclusive": "?"}

_MARKDOWN: Final = re.compile(r"([\\`*_{}\[\]()#+\-.!|~<>$:&])")


def escape_markdown(text: object) -> str:
    """Text that Markdown shows as it is: no emphasis, link, image, formula or HTML of the capture's choosing."""
    return _MARKDOWN.sub(r"\\\1", " ".join(readable(str(text)).split()))


def for_plotly(text: object) -> str:
    """Text that plotly shows as it is, which otherwise reads a few HTML tags."""
    return html.escape(readable(str(text)), quote=False)


def arm_label(arm: ManifestArm) -> str:
    """`on (prefetch)`, where the arm's meaning is known."""
    return f"{arm.name} ({arm.traits.meaning})" if arm.traits is not None else arm.name


def short_cell(cell: CellSizes) -> str:
    """`ubatch 64 · depth 0 · 512 + 16`: the last are prompt and generated tokens."""
    sizes = (("ubatch", cell.n_ubatch), ("depth", cell.n_depth))
    parts = [f"{name} {value:,}" for name, value in sizes if value is not None]
    tokens = " + ".join(f"{value:,}" for value in (cell.n_prompt, cell.n_gen) if value is not None)
    return " · ".join([*parts, *([tokens] if tokens else [])]) or "all passes"


def cell_labels(cells: Sequence[CellSizes]) -> list[str]:
    """Labels that tell cells apart, by the sizes in which they differ: `ubatch 64 · depth 0`."""
    named = {"n_ubatch": "ubatch {:,}", "n_depth": "depth {:,}", "n_prompt": "prompt {:,}", "n_gen": "gen {:,}"}
    varied = [size for size in named if len({getattr(cell, size) for cell in cells}) > 1]
    if not varied:
        return [short_cell(cell) for cell in cells]
    return [
        " · ".join(
            named[size].format(value) if value is not None else f"{size.removeprefix('n_')} not known"
            for size in varied
            for value in [getattr(cell, size)]
        )
        for cell in cells
    ]


def whole_cell(cell: CellSizes) -> str:
    """`ubatch 64 · depth 0 · prompt 512 + 16 generated`."""
    sizes = (("ubatch", cell.n_ubatch), ("depth", cell.n_depth))
    parts = [f"{name} {value:,}" for name, value in sizes if value is not None]
    tokens = [f"prompt {cell.n_prompt:,}"] if cell.n_prompt else []
    tokens += [f"{cell.n_gen:,} generated"] if cell.n_gen else []
    return " · ".join([*parts, *([" + ".join(tokens)] if tokens else [])]) or "all passes"


def cell_key(cell: CellSizes) -> str:
    """The cell in an address: `p512-n16-ub64-d0`."""
    parts = (("p", cell.n_prompt), ("n", cell.n_gen), ("ub", cell.n_ubatch), ("d", cell.n_depth))
    return "-".join(f"{name}{value}" for name, value in parts if value is not None) or "all"


def percent(compared: Comparison) -> str:
    """By how much the figure changed, without a sign: `12 %`, `3.4 %`."""
    size = abs(compared.ratio - 1) * 100
    return f"{size:.0f} %" if size >= 9.95 else f"{size:.1f} %"


def headline(
    a: str, b: str, who: str, compared: Mapping[str, Comparison | None], placed: tuple[str, str] | None = None
) -> str:
    """`Prefetch made the first token 12 % slower and prefill 31 % faster than off; decode is unclear.`

    who: B as the subject of a sentence. placed: where the arms' weights lie elsewhere, in words (`8 host layers`):
    then the policy made nothing alone, and it reads `on@2 (16 host layers) against off (8 host layers): the first
    token 58 % slower.`
    """
    named = {"ttft_ns": "the first token", "prefill_tokens_per_s": "prefill", "decode_tokens_per_s": "decode"}
    if not any(compared.get(name) for name in named):
        named = {"wall_ns": "the pass"}  # all that a trace tells whose passes have no phases
    known = {what: one for name, what in named.items() if (one := compared.get(name)) is not None}
    if not known:
        return f"{a} and {b} cannot be compared here."
    by_verdict = {verdict: [w for w, one in known.items() if one.verdict == verdict] for verdict in SIGNS}
    changed = [f"{w} {percent(one)} {one.verdict}" for w, one in known.items() if one.verdict in ("faster", "slower")]
    if placed:
        clauses = [f"{b} ({placed[1]}) against {a} ({placed[0]})", *([listed(changed)] if changed else [])]
    else:
        clauses = [f"{who} made {listed(changed)} than {a}" if changed else f"{who} against {a}"]
    if same := by_verdict["no difference"]:
        clauses.append(f"{listed(same)} stayed the same")
    if unclear := by_verdict["inconclusive"]:
        clauses.append(f"{listed(unclear)} {'is' if len(unclear) == 1 else 'are'} unclear")
    begins_with_names = bool(placed) or not changed
    return f"{clauses[0]}: {'; '.join(clauses[1:])}." if begins_with_names else f"{'; '.join(clauses)}."


def subject(arm: ManifestArm) -> str:
    """The arm as the subject of a sentence: `Prefetch`; by its name where its meaning is not known."""
    return arm.traits.subject if arm.traits is not None else f"The arm {arm.name}"
