"""The version of hprof: what captures, exports and `hprof --version` state."""

__version__ = "0.1.0"
