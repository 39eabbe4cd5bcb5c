"""``python -m mpigraph bench``: what this machine allows, what the library reaches, and where a step's time goes."""

from mpigraph.cli.bench.command import add_parser

__all__ = ["add_parser"]
