"""Every edge whose source is in a set."""

from dataclasses import dataclass, field

import numpy as np

from mpigraph.arrays import I64
from mpigraph.kernels.listed_sources import choose_within, count_within
from mpigraph.sampling.strategies.strategy import Draw, OwnedRows, Strategy
from mpigraph.store.store import Store


@dataclass(frozen=True)
class Within(Strategy):
    """Take all edges from some sources. Owners look them up, so that no other edge travels.

    Attributes:
        sources: int64[m], ascending.
    """

    tag = 10
    shared = ("sources",)
    sources: I64 = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def needs_tables(self) -> bool:
        """False: edges are enough."""
        return False

    def prepare(self, store: Store, relation: int) -> Draw:
        """Return the strategy itself, which needs no tables."""
        return self

    def count(self, rows: OwnedRows, positions: I64, counts: I64) -> None:
        """See :class:`.Draw`."""
        edges = rows.edges
        where = (edges.indptr, rows.first_row, edges.indices, self.sources)
        count_within(rows.rows, *where, rows.excluded, positions, counts)

    def choose(self, rows: OwnedRows, positions: I64, offsets: I64, picks: I64) -> None:
        """See :class:`.Draw`."""
        edges = rows.edges
        where = (edges.indptr, rows.first_row, edges.indices, self.sources)
        choose_within(rows.rows, *where, rows.excluded, positions, offsets, picks)
