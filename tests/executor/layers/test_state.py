"""States of every kind of mixer: what they cost, also where nothing is computed."""

from __future__ import annotations

import pytest
import torch

from executor.layers.state import new_state
from executor.model import Mixer
from executor.models.presets import load_preset, preset_names


def mixers() -> list[Mixer]:
    shapes = (load_preset(name).shape for name in preset_names())
    return list(dict.fromkeys(layer.mixer for shape in shapes for layer in shape.layers))


@pytest.mark.parametrize("mixer", mixers(), ids=lambda mixer: type(mixer).__name__)
def test_bytes_are_known_without_memory(mixer: Mixer) -> None:
    sizes = [new_state(mixer, 8, torch.device(device), torch.bfloat16).n_bytes for device in ("meta", "cpu")]
    assert sizes[0] == sizes[1] > 0


def test_only_a_delta_nets_state_is_of_fixed_size() -> None:
    for mixer in mixers():
        short, long = (new_state(mixer, n, torch.device("meta"), torch.bfloat16).n_bytes for n in (8, 16))
        assert (long == short) == (type(mixer).__name__ == "DeltaNetShape")
