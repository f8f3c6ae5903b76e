"""A capture on disk: files written whole or not at all, read in bounds, gathered when the run is over."""
