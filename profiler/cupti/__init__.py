"""`hprof run --recorder cupti`: the kernels of each pass, recorded by torch.profiler beside hprof's own intervals."""
