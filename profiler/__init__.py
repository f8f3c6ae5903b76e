"""Captures, imports, measures and judges: pure functions over the trace tables of `profiler.schema`.

docs/architecture.md says what stands on what.
"""

HPROF_PACKAGE = "hprof.profiler"
