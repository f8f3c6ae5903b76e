"""Benchmarks that need an NVIDIA GPU. `make gpu-check` runs them and writes `benchmarks/results/`."""
