"""Tests of executor/models/architectures: each family against llama.cpp, and in the engine."""
