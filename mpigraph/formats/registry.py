"""The layouts that ``readers.py`` asks for; a new one is a module here and a line in ``LAYOUTS``."""

from pathlib import Path

from mpigraph.formats.dgl_csv import DGL_CSV
from mpigraph.formats.graphbolt import GRAPHBOLT
from mpigraph.formats.graphstorm import GRAPHSTORM
from mpigraph.formats.hgb import HGB
from mpigraph.formats.igb import IGB
from mpigraph.formats.konect import KONECT
from mpigraph.formats.layout import Layout
from mpigraph.formats.matrix_market import MATRIX_MARKET
from mpigraph.formats.neo4j import NEO4J, NEPTUNE

__all__ = ["LAYOUTS", "layout_of", "marks_of_directories"]

LAYOUTS: tuple[Layout, ...] = (
    MATRIX_MARKET, KONECT, HGB, IGB, GRAPHBOLT, DGL_CSV, GRAPHSTORM, NEO4J, NEPTUNE,
)  # fmt: skip
"""In the order in which they are tried."""


def layout_of(path: Path) -> Layout | None:
    """Return the layout of a file or directory; None if it has none of these."""
    return next((layout for layout in LAYOUTS if layout.is_at(path)), None)


def marks_of_directories() -> list[str]:
    """Return how directories are recognised, for a message: the files of each layout, and its name."""
    return [f"{layout.marks} ({layout.name})" for layout in LAYOUTS if layout.marks]
