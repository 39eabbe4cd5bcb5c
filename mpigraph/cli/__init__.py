"""Commands of ``python -m mpigraph``."""
