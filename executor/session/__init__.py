"""A run's lasting part: `Session(model, placement, arms, SessionOptions(…))`, then `run_pass` as often as one likes."""

from executor.session.options import SessionOptions
from executor.session.session import Session

__all__ = ["Session", "SessionOptions"]
