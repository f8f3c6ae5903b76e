"""Captures, imports, measures and judges: pure functions over the trace tables of `profiler.schema`.

docs/architecture.md says what stands on what.
"""

from typing import Final

HPROF_PACKAGE = "hprof.profiler"
DEFAULT_TRACES: Final = "traces"  # where captures land, relative to where hprof is called
