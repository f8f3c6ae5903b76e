"""Runs one pass: issues every step of every ubatch to the devices' streams, in the order that a policy's plans need."""
