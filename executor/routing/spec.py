"""The text of `--routing`: `FAMILY`, `FAMILY:NAME=VALUE,…` or `trace:PATH`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from executor.errors import HprofError
from executor.routing.kinds import RandomRouting, Routing, TraceRouting
from executor.routing.popularity import FAMILIES
from executor.routing.trace import read_trace

DEFAULT_ROUTING: Final = "lognormal"

# parameter -> (lowest, highest); the highest is excluded for shares and chances
_RANGES: Final = {
    "sigma": (0.0, 10.0),
    "s": (0.0, 10.0),
    "alpha": (1e-3, 1e6),
    "dead": (0.0, 1.0),
    "repeat": (0.0, 1.0),
}


def routing_from_spec(spec: str, *, layers: Iterable[int], n_experts: int, n_used: int, seed: int) -> Routing:
    """The routing that `spec` describes for a model whose MoE layers are numbered `layers`.

    HprofError names the part of `spec` that is wrong; a family's parameters left out keep their defaults, and
    `repeat` (0) may be given with any family.
    """
    name, _, rest = spec.partition(":")
    if name == "trace":
        return _recorded(rest, layers, n_experts, n_used)
    if name not in FAMILIES:
        near = difflib.get_close_matches(name, [*FAMILIES, "trace"], n=1)
        hint = f", did you mean {near[0]}?" if near else "."
        raise HprofError(
            f"--routing {spec[:80]}: {name[:40]!r} is not known; known are {', '.join(FAMILIES)} and trace:PATH{hint}"
        )
    parameters = {**FAMILIES[name].defaults, "repeat": 0.0}
    for item in filter(None, rest.split(",")):
        key, value = _parameter(item, list(parameters), spec)
        parameters[key] = value
    repeat = parameters.pop("repeat")
    return RandomRouting(name, parameters, n_experts, n_used, seed, repeat)


def _recorded(path: str, layers: Iterable[int], n_experts: int, n_used: int) -> TraceRouting:
    choices = read_trace(Path(path), n_experts, n_used)
    missing = sorted(set(layers) - set(choices))
    if missing:
        raise HprofError(
            f"{path} has no rows for layer {missing[0]} (it has {len(choices)} layers), but the model's router sits "
            "there; record the trace with this model."
        )
    return TraceRouting(path, choices, n_experts)


def _parameter(item: str, known: list[str], spec: str) -> tuple[str, float]:
    key, _, text = item.partition("=")
    if key not in known:
        raise HprofError(f"--routing {spec[:80]}: {key[:40]!r} is no parameter of it; it takes {', '.join(known)}.")
    low, high = _RANGES[key]
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value < high:
        raise HprofError(
            f"--routing {spec[:80]}: {key} is {text[:40]!r}, but must be a number from {low:g} to below {high:g}."
        )
    return key, value
