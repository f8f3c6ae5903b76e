"""Benchmarks: each prints a table with ratios measured in one run. `make bench` and `make gpu-check` run them."""
