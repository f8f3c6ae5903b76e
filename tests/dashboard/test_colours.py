"""Colours that stand beside each other can be told apart, also with deuteranopia, the most common colour blindness."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from dashboard.figures import memory, style
from dashboard.figures.style import ARM_COLOURS, DIVERGING, SPENT, TIMELINE

# Machado, Oliveira and Fernandes (2009), deuteranopia of full severity, on linear RGB.
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = TO_XYZ.sum(axis=1)
LEAST = 12.0  # CIE76; 2.3 is just noticeable side by side


def linear(colour: str) -> np.ndarray:
    encoded = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB under D65, of linear RGB."""
    scaled = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(scaled > 216 / 24389, np.cbrt(scaled), (24389 / 27 * scaled + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(one: str, other: str, eyes: np.ndarray) -> float:
    return float(np.linalg.norm(lab(eyes @ linear(one)) - lab(eyes @ linear(other))))


def contrast(one: str, other: str) -> float:
    """WCAG's, of two colours."""
    light = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


def over(colour: str, ground: str) -> str:
    """A `rgba(...)` colour as it looks on a background."""
    *rgb, alpha = map(float, colour.removeprefix("rgba(").removesuffix(")").split(","))
    below = [int(ground[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(a * alpha + b * (1 - alpha)):02X}" for a, b in zip(rgb, below, strict=True))


EVENTS = ("h2d", "compute", "exposed", "cpu_compute", "wait")
SETS = {
    "where the time went": list(SPENT.values()),
    "arms": list(ARM_COLOURS[:6]),
    "verdicts, light": [over(colour, "#FFFFFF") for _, colour in DIVERGING],
    "verdicts, dark": [over(colour, "#12161C") for _, colour in DIVERGING],
    "timeline, light": [str(TIMELINE["light"][kind]) for kind in EVENTS],
    "timeline, dark": [str(TIMELINE["dark"][kind]) for kind in EVENTS],
    "slots": [colour for colour, _ in memory._STATES.values()],
    "layers that pay": [style.BLUE, style.VERMILLION],
}


@pytest.mark.parametrize("eyes", [np.eye(3), DEUTERANOPIA], ids=["usual", "deuteranopia"])
@pytest.mark.parametrize("name", SETS)
def test_colours_can_be_told_apart(name: str, eyes: np.ndarray) -> None:
    near = {pair: difference(*pair, eyes) for pair in combinations(SETS[name], 2)}
    assert min(near.values()) >= LEAST, sorted(near.items(), key=lambda one: one[1])[:3]


def test_the_difference_knows_red_and_green() -> None:
    assert difference("#D00000", "#4F7000", np.eye(3)) > 4 * difference("#D00000", "#4F7000", DEUTERANOPIA)


@pytest.mark.parametrize(("theme", "ground"), [("light", "#FFFFFF"), ("dark", "#12161C")])
def test_what_is_drawn_stands_out_from_the_page(theme: str, ground: str) -> None:
    drawn = {kind: contrast(str(TIMELINE[theme][kind]), ground) for kind in ("h2d", "compute", "exposed", "wait")}
    drawn |= {name: contrast(colour, ground) for name, colour in SPENT.items()}
    # Hatches and outlines help what is paler; nothing is paler than this.
    assert min(drawn.values()) >= 2.4, drawn


def test_words_on_colours_can_be_read() -> None:
    for theme in TIMELINE.values():
        on = theme["on"]
        assert isinstance(on, dict)
        assert min(contrast(text, str(theme[kind])) for kind, text in on.items()) >= 3.0  # short, bold or large
    for text, ground in (("#1C2430", "#FFFFFF"), ("#E4E8EE", "#12161C")):  # .streamlit/config.toml
        assert min(contrast(text, over(colour, ground)) for _, colour in DIVERGING) >= 4.5
    assert contrast("#FFFFFF", "#0072B2") >= 4.5, "the chosen arm's button"
