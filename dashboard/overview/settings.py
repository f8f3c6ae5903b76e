"""The Overview's configuration: settings in which A and B differ, and those that they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pandas as pd
import streamlit as st

from dashboard import show
from dashboard.choice import Choice
from profiler.compare.setting_words import setting_name, setting_value
from profiler.compare.settings import flattened
from profiler.manifest import ManifestArm

_MANIFEST_PARTS: Final = (
    *("hprof_version", "created_utc", "machine", "model", "placement", "grid", "seeds", "environment"),
    "link_h2d_gb_s",
)


def differences(choice: Choice) -> None:
    """Draws what A and B were asked for differently, and, folded, what they share."""
    st.header("Configuration", anchor=False)
    differing, shared = _compared(choice)
    if choice.b is not None:
        if differing:
            rows = [
                (setting_name(name), *(setting_value(name, value) for value in values))
                for name, values in differing.items()
            ]
            columns = ["setting", *(f"{letter} {arm}" for letter, arm in zip("AB", choice.arms, strict=True))]
            table = pd.DataFrame(rows, columns=columns)
            show.table(table, alt="settings in which A and B differ", key="differing", name="differing-settings")
        else:
            st.markdown("The arms were asked for in the same way but for their names.")
    what = "What both arms share: machine" if choice.b is not None else "Machine"
    with st.expander(f"{what}, model, placement, seeds"):
        show.table(_common(choice, shared), alt="settings that A and B share", key="common", name="shared-settings")


def _compared(choice: Choice) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Settings of the arms on show that differ, with each arm's value, and those that do not."""
    arms = {arm.name: arm for arm in choice.capture.manifest.arms}
    settings = [_flat(_settings(arms.get(name))) for name in choice.arms]
    differing, shared = {}, {}
    for key in dict.fromkeys(key for one in settings for key in one):
        values = [one.get(key) for one in settings]
        if len(values) == 2 and values[0] != values[1]:
            differing[key] = values
        else:
            shared[key] = values[0]
    return differing, shared


def _common(choice: Choice, shared: dict[str, Any]) -> pd.DataFrame:
    manifest = choice.capture.manifest
    told = shared | _flat({part: getattr(manifest, part) for part in _MANIFEST_PARTS})
    told["command"] = " ".join(manifest.argv)
    known = {key: value for key, value in told.items() if value not in (None, "", [], {})}
    rows = [(setting_name(key), setting_value(key, value)) for key, value in known.items()]
    return pd.DataFrame(rows, columns=["setting", "value"])


def _settings(arm: ManifestArm | None) -> dict[str, Any]:
    if arm is None:
        return {}
    options = {name: value for name, value in arm.options.items() if name != "requested"}
    if asked := arm.requested_options:
        options |= {"requested": {name: value for name, value in asked.items() if name != "arm"}}
    return {"requested arm": arm.requested, "effective arm": arm.effective, **options}


def _flat(settings: Mapping[str, object]) -> dict[str, Any]:
    return dict(setting for name, value in settings.items() for setting in flattened(name, value))
