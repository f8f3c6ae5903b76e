"""A model, placed: what stays on each device and on the host from pass to pass."""
