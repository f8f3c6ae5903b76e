"""The arms. `make_policy(name, options)` builds one; `ARMS` lists them with what they do."""

from __future__ import annotations

import difflib

from executor.errors import HprofError
from executor.policies.base import Policy, PolicyOptions
from executor.policies.simple import Cpu, Full, Gated, Off, OffWhole, On

ARMS: dict[str, type[Policy]] = {
    "off": Off,
    "off-whole": OffWhole,
    "on": On,
    "gated": Gated,
    "cpu": Cpu,
    "full": Full,
}


def make_policy(name: str, options: PolicyOptions) -> Policy:
    """Build the arm `name`. Raises HprofError for an unknown one, with the near names."""
    if name not in ARMS:
        near = difflib.get_close_matches(name, ARMS, n=2) or list(ARMS)
        raise HprofError(f"--arms '{name}' is not an arm: did you mean {' or '.join(near)}?")
    return ARMS[name](name, options)
