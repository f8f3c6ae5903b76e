"""The arms. `make_policy(name, options)` builds one; `ARMS` lists them."""

from __future__ import annotations

from executor.errors import HprofError, did_you_mean
from executor.policies.auto import Auto
from executor.policies.base import Policy, PolicyOptions
from executor.policies.cache import Cached
from executor.policies.hot import Hot
from executor.policies.simple import Cpu, Full, Gated, Off, OffWhole, On

FULL = "full"
"""The arm that keeps everything resident."""
ARMS: dict[str, type[Policy]] = {
    "off": Off,
    "off-whole": OffWhole,
    "on": On,
    "gated": Gated,
    "auto": Auto,
    "hot": Hot,
    "cpu": Cpu,
    FULL: Full,
}
CACHE = "cache"
_WITHOUT_CACHE = ("cpu", FULL)  # nothing of theirs is streamed


def arm_names() -> list[str]:
    """Every arm, the combinations with the cache last."""
    return [*ARMS, CACHE, *(f"{name}+{CACHE}" for name in ARMS if name not in _WITHOUT_CACHE)]


def make_policy(name: str, options: PolicyOptions) -> Policy:
    """Build the arm `name`: one of ARMS, `cache` (= off+cache), or one with `+cache`.

    Raises HprofError for an unknown one, with the near names.
    """
    if name not in arm_names():
        hint = did_you_mean(name, arm_names()) or f"the arms are {', '.join(arm_names())}."
        raise HprofError(f"--arms '{name[:40]}' is not an arm: {hint}")
    base, plus, _ = name.partition(f"+{CACHE}")
    if name == CACHE or plus:
        inner = "off" if name == CACHE else base
        return Cached(name, options, ARMS[inner](inner, options))
    return ARMS[name](name, options)
