"""Runs a model hybrid (some weights in host memory) and records every copy and compute interval.

`session` is the way in; docs/architecture.md says what stands on what.
"""

HPROF_PACKAGE = "hprof.executor"  # hprof looks for this mark: PyPI has another package called "executor"
