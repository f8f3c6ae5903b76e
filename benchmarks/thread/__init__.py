"""The measurements of the discussion that hprof exists for, each as commands: `python -m benchmarks.thread`."""
