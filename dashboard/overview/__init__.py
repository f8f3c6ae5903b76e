"""Sections of the Overview page, one file each."""
