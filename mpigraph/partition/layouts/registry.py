"""The layouts that ``readers.py`` asks for; a new one is a module here and a line in ``LAYOUTS``."""

from pathlib import Path

from mpigraph.partition.layouts.dgl_csv import DGL_CSV
from mpigraph.partition.layouts.graphbolt import GRAPHBOLT
from mpigraph.partition.layouts.graphstorm import GRAPHSTORM
from mpigraph.partition.layouts.hgb import HGB
from mpigraph.partition.layouts.igb import IGB
from mpigraph.partition.layouts.konect import KONECT
from mpigraph.partition.layouts.layout import Layout
from mpigraph.partition.layouts.matrix_market import MATRIX_MARKET
from mpigraph.partition.layouts.neo4j import NEO4J, NEPTUNE

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
