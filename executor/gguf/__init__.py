"""Reads GGUF files, which come from strangers: a bounded walk over the header, checked sizes, a memory map."""
