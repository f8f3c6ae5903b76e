"""Judges a capture, and says what it found: `build.build_report` makes a Report, renderers draw its blocks."""
