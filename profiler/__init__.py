"""Captures, imports, measures and judges: pure functions over the trace tables of `profiler.schema`."""

HPROF_PACKAGE = "hprof.profiler"
