"""A small timeline as SVG: three lanes, boxes with layer numbers, readable on light and on dark pages.

Pure: boxes in, text out. Colours are the dashboard's; an exposed copy is hatched as well as coloured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

from dashboard.figures.style import TIMELINE

Kind = Literal["h2d", "exposed", "d2d", "d2h", "compute", "cpu_compute"]
LANES: Final = ("copy", "compute", "host")
_LANE_TITLES: Final = {"copy": "copy stream", "compute": "compute stream", "host": "host"}
_LEGEND: Final = {
    "h2d": "copy, hidden",
    "exposed": "copy, exposed",
    "d2d": "copy inside the device",
    "d2h": "activations to the host",
    "compute": "compute",
    "cpu_compute": "compute on the host",
}
_WIDTH, _LEFT, _RIGHT = 760, 108, 14
_TOP, _HEIGHT, _GAP = 30, 24, 9
_LETTER = 6.6  # width of a digit at the size used in boxes


@dataclass(frozen=True, slots=True)
class Box:
    """A busy interval, in ms of the picture. `faded`: of a ubatch before or after the one that is shown."""

    lane: str
    start: float
    end: float
    kind: Kind
    label: str = ""
    faded: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """What one drawing shows. `span_ms` is its width; at `marks` the host gets to know the router's choice."""

    title: str
    alt: str
    span_ms: float
    boxes: Sequence[Box]
    marks: Sequence[float] = ()
    ends: Sequence[tuple[float, str]] = ()  # (ms, caption): where a ubatch ends


def draw(picture: Picture) -> str:
    """The picture as a whole SVG file."""
    bottom = _TOP + len(LANES) * (_HEIGHT + _GAP)
    body = [
        f'<text class="title" x="12" y="18">{escape(picture.title)}</text>',
        *(_lane(number, name) for number, name in enumerate(LANES)),
        *(_box(box, picture.span_ms) for box in picture.boxes),
        *(_mark(at, picture.span_ms) for at in picture.marks),
        *(_end(at, caption, picture.span_ms, bottom) for at, caption in picture.ends),
        *_axis(picture.span_ms, bottom),
        *_legend(picture, bottom + 34),
    ]
    height = bottom + 46
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(picture.alt, quote=True)}">\n<title>{escape(picture.alt)}</title>\n'
        f"{_STYLE}\n{_HATCH}\n"
        f'<rect class="page" x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _x(at_ms: float, span_ms: float) -> float:
    return _LEFT + at_ms / span_ms * (_WIDTH - _LEFT - _RIGHT)


def _y(lane: str) -> int:
    return _TOP + LANES.index(lane) * (_HEIGHT + _GAP)


def _lane(number: int, name: str) -> str:
    y = _TOP + number * (_HEIGHT + _GAP)
    return (
        f'<rect class="lane" x="{_LEFT}" y="{y}" width="{_WIDTH - _LEFT - _RIGHT}" height="{_HEIGHT}" rx="3"/>'
        f'<text class="name" x="{_LEFT - 8}" y="{y + 16}">{_LANE_TITLES[name]}</text>'
    )


def _box(box: Box, span_ms: float) -> str:
    x, y = _x(max(0.0, box.start), span_ms), _y(box.lane)
    width = max(0.8, _x(min(span_ms, box.end), span_ms) - x)
    kind = f"{box.kind} faded" if box.faded else box.kind
    shape = f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_HEIGHT}" rx="1.5"/>'
    if box.kind == "exposed":
        shape += f'<rect class="hatch" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_HEIGHT}" rx="1.5"/>'
    if not box.label or width < _LETTER * len(box.label) + 4 or (box.faded and box.kind == "exposed"):
        return shape
    plate = ""
    if box.kind == "exposed":  # a digit on hatching needs a ground of its own
        wide = _LETTER * len(box.label) + 5
        plate = f'<rect class="{kind}" x="{x + width / 2 - wide / 2:.1f}" y="{y + 4}" width="{wide:.1f}" height="16"/>'
    return f'{shape}{plate}<text class="n {kind}-text" x="{x + width / 2:.1f}" y="{y + 16}">{escape(box.label)}</text>'


def _mark(at_ms: float, span_ms: float) -> str:
    x, y = _x(at_ms, span_ms), _y("compute")
    return f'<path class="mark" d="M{x - 4:.1f} {y - 8}h8l-4 7z"/>'


def _end(at_ms: float, caption: str, span_ms: float, bottom: int) -> str:
    x = _x(at_ms, span_ms)
    anchor, shift = ("end", -5) if x > _WIDTH - 170 else ("start", 5)
    place = f'text-anchor="{anchor}" x="{x + shift:.1f}" y="{_y("host") + 16}"'
    line = f'<path class="end" d="M{x:.1f} {_TOP - 4}V{bottom}"/>'
    return f'{line}<text class="caption" {place}>{escape(caption)}</text>' if caption else line


def _axis(span_ms: float, bottom: int) -> list[str]:
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if span_ms / s <= 10)
    ticks = []
    for number in range(int(span_ms / step) + 1):
        x = _x(number * step, span_ms)
        unit = " ms" if number == 0 else ""
        ticks.append(
            f'<path class="tick" d="M{x:.1f} {bottom}v4"/>'
            f'<text class="axis" x="{x:.1f}" y="{bottom + 15}">{number * step:g}{unit}</text>'
        )
    return ticks


def _legend(picture: Picture, y: int) -> list[str]:
    shown = [kind for kind in _LEGEND if any(box.kind == kind for box in picture.boxes)]
    parts, x = [], float(_LEFT)
    for kind in shown:
        parts.append(f'<rect class="{kind}" x="{x:.0f}" y="{y - 9}" width="12" height="10" rx="1.5"/>')
        if kind == "exposed":
            parts.append(f'<rect class="hatch" x="{x:.0f}" y="{y - 9}" width="12" height="10" rx="1.5"/>')
        parts.append(f'<text class="key" x="{x + 16:.0f}" y="{y}">{_LEGEND[kind]}</text>')
        x += 16 + 5.9 * len(_LEGEND[kind]) + 16
    if picture.marks:
        parts.append(f'<path class="mark" d="M{x:.0f} {y - 7}h8l-4 6z"/>')
        parts.append(f'<text class="key" x="{x + 13:.0f}" y="{y}">router’s choice known to the host</text>')
    return parts


def _colours(theme: str) -> str:
    colours = TIMELINE[theme]
    on = colours["on"]
    assert isinstance(on, dict)
    rules = [f".{kind}{{fill:{colours[kind]}}}" for kind in _LEGEND]
    rules += [f".{kind}-text{{fill:{on.get(kind, on['h2d'])}}}" for kind in _LEGEND]
    return "".join(rules)


_LIGHT: Final = (
    ".page{fill:#fff;stroke:#d8dce2}.lane{fill:#f1f3f6}text{fill:#3c434d}.title{fill:#15191f}"
    ".tick,.end{stroke:#8a8f98}.mark{fill:#15191f}.exposed-text{fill:#15191f}"
)
_DARK: Final = (
    ".page{fill:#14181d;stroke:#333a43}.lane{fill:#1e242b}text{fill:#b9c1cc}.title{fill:#eef1f5}"
    ".tick,.end{stroke:#7d8590}.mark{fill:#eef1f5}.exposed-text{fill:#101418}"
)
_STYLE: Final = (
    "<style>text{font:11px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}.title{font-weight:600;font-size:12px}"
    ".name{text-anchor:end}.axis,.n{text-anchor:middle}.n{font-weight:600}.axis,.caption,.key{font-size:10.5px}"
    ".faded{opacity:.38}.hatch{fill:url(#h)}.end{stroke-dasharray:3 3;fill:none}"
    + _LIGHT
    + _colours("light")
    + "@media(prefers-color-scheme:dark){"
    + _DARK
    + _colours("dark")
    + "}</style>"
)
_HATCH: Final = (
    '<defs><pattern id="h" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path d="M0 0V6" stroke="#fff" stroke-opacity=".65" stroke-width="3.2"/></pattern></defs>'
)
