"""Models known by shape: one TOML file each, and the loader that checks it against the shape's dataclasses."""

from executor.models.presets.loader import Preset, load_preset, preset_names

__all__ = ["Preset", "load_preset", "preset_names"]
