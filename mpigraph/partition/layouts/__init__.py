"""Layouts in which other programs keep graphs: one module for each, all in ``registry.py``."""
