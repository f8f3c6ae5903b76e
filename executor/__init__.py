"""Runs a model hybrid (some weights in host memory) and records every copy and compute interval."""

HPROF_PACKAGE = "hprof.executor"  # hprof.py looks for this mark: PyPI has another package called "executor"
