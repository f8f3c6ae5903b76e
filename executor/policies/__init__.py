"""The arms: `ARMS` lists them, `make_policy(name, options)` builds one, `find_traits(name)` says what is true of it.

Needs no torch, so that a report can ask. An arm's own file holds everything else about it.
"""

from __future__ import annotations

from dataclasses import replace

from executor.errors import HprofError, did_you_mean
from executor.policies.auto import Auto
from executor.policies.base import Policy, PolicyOptions
from executor.policies.both import Both
from executor.policies.cache import Cached
from executor.policies.hot import Hot
from executor.policies.simple import Cpu, Full, Gated, Off, OffWhole, On
from executor.policies.traits import ArmTraits

FULL = "full"
"""The name of the arm that keeps everything resident."""
ARMS: dict[str, type[Policy]] = {
    "off": Off,
    "off-whole": OffWhole,
    "on": On,
    "gated": Gated,
    "auto": Auto,
    "hot": Hot,
    "both": Both,
    "cpu": Cpu,
    FULL: Full,
}
PREFETCH_ARMS = {0: "off", 1: "on"}
"""What llama.cpp's `-pw 0` and `-pw 1` are called here."""
_CACHE = "cache"
_CACHED_BY_DEFAULT = "off"  # `cache` alone


def arm_names() -> list[str]:
    """Every arm, the combinations with the cache last."""
    combined = [f"{name}+{_CACHE}" for name, policy in ARMS.items() if policy.traits.takes_cache]
    return [*ARMS, _CACHE, *combined]


def make_policy(name: str, options: PolicyOptions) -> Policy:
    """Build the arm `name`: one of ARMS, `cache` (= off+cache), or one with `+cache`.

    Raises HprofError for an unknown one, with the near names.
    """
    traits, base = arm_traits(name), _base(name)
    policy = ARMS[base](base, options)
    return policy if base == name else Cached(name, options, policy, traits)


def arm_traits(name: str) -> ArmTraits:
    """What is true of the arm `name` by design. Raises HprofError for an unknown one, with the near names."""
    traits = find_traits(name)
    if traits is None:
        hint = did_you_mean(name, arm_names()) or f"the arms are {', '.join(arm_names())}."
        raise HprofError(f"--arms '{name[:40]}' is not an arm: {hint}")
    return traits


def find_traits(name: str) -> ArmTraits | None:
    """The same; None where no arm has this name, as for what another tool measured."""
    if name not in arm_names():
        return None
    base = _base(name)
    traits = ARMS[base].traits
    if name == base:
        return traits
    cached = traits.with_cache(base)
    return replace(cached, meaning="expert cache", subject="The expert cache") if name == _CACHE else cached


def _base(name: str) -> str:
    """The arm that `name` is, or that its expert cache comes on top of."""
    return _CACHED_BY_DEFAULT if name == _CACHE else name.removesuffix(f"+{_CACHE}")
