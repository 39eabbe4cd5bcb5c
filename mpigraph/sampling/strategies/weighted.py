"""In proportion to edge weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.kernels.exclude import recount_weighted, shorten_rows
from mpigraph.kernels.sample import Candidates
from mpigraph.kernels.weighted import choose_weighted, count_weighted
from mpigraph.sampling.strategies.strategy import Draw, OwnedRows, Strategy
from mpigraph.store.derived import EdgeWeights
from mpigraph.store.store import Store


@dataclass(frozen=True)
class Weighted(Strategy):
    """Choose edges with probability proportional to their weights; an edge of weight 0 is never chosen.

    Attributes:
        replace: with replacement.
        weights: number of the tensor of edge weights.
    """

    tag = 2
    tables = ("weights",)
    kernel: ClassVar[Callable[..., None]] = staticmethod(choose_weighted)
    replace: bool
    weights: int

    def prepare(self, store: Store, relation: int) -> Draw:
        """Look up the weights, and the tables of prepared ones."""
        return _WeightedDraw(self, store.derived(EdgeWeights, self.weights))


class _WeightedDraw:
    def __init__(self, how: Weighted, weights: EdgeWeights) -> None:
        self._how = how
        self._weights = weights
        self._tables = weights.tables  # one object for all passes, whatever is written meanwhile

    def count(self, rows: OwnedRows, positions: I64, counts: I64) -> None:
        """See :class:`.Draw`. Raises GraphDataError if an edge weight is negative, infinite or NaN."""
        edges = rows.edges
        dst = rows.to_count(self._how.fanout, self._how.replace)
        weights = self._weights.values(rows.host)
        where = (edges.indptr, rows.first_row, weights, self._tables.num_drawable(rows.host), positions)
        bad = count_weighted(dst, *where, rows.scratch, counts)
        if bad >= 0:
            raise GraphDataError(self._weights.complaint(edges.first_edge + bad, weights[bad]))
        if len(rows.excluded):
            shorten_rows(dst, rows.excluded, positions, rows.scratch, counts)
            _, shortened = rows.split(positions)
            recount_weighted(dst, weights, rows.excluded, shortened, rows.scratch, counts)

    def choose(self, rows: OwnedRows, positions: I64, offsets: I64, picks: I64) -> None:
        """See :class:`.Draw`."""
        dst = rows.destinations(self._how.fanout, self._how.replace)
        whole = self._weights.values(rows.host)
        table = self._tables.table(rows.host)

        def choose(columns: list[Array], positions: I64, scratch: Candidates) -> None:
            (weights,) = columns
            prepared = table if weights is whole else table[:0]  # for a copy no table was made
            self._how.kernel(dst, weights, prepared, positions, scratch, offsets, picks)

        rows.choose_kept([whole], positions, offsets, picks, choose)
