"""Where the capture of a run goes that names no -o."""

from __future__ import annotations

import re
import time
from itertools import chain, count
from pathlib import Path

from profiler import DEFAULT_TRACES


def default_output(model: str) -> str:
    """A folder that is not there yet, named after the model, or after what runs."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-.") or "model"
    first = f"{DEFAULT_TRACES}/{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (f"{first}-{number}" for number in count(2))
    return next(path for path in chain([first], others) if not Path(path).exists())
