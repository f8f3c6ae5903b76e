"""`hprof.check()`: watches what any PyTorch code issues, and proves its order as `hprof check` does a capture's.

`checking` is the context manager; `dispatch` sees operations, `cuda` streams and events; `memory` knows whose bytes a
tensor's are, `issued` keeps what was issued, and `profiler.ordering` judges it.
"""
