"""Shows captures in a browser; reads them through `profiler` and computes nothing of its own."""

HPROF_PACKAGE = "hprof.dashboard"
