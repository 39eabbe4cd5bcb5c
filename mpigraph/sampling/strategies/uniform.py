"""Every edge alike."""

from dataclasses import dataclass

from mpigraph.arrays import I64
from mpigraph.kernels.exclude import shorten_rows, step_over
from mpigraph.kernels.sample import choose_uniform, count_uniform
from mpigraph.sampling.strategies.strategy import Draw, OwnedRows, Strategy
from mpigraph.store.store import Store


@dataclass(frozen=True)
class Uniform(Strategy):
    """Choose each edge with the same probability.

    Attributes:
        replace: with replacement.
    """

    tag = 1
    replace: bool = False

    @property
    def needs_tables(self) -> bool:
        """False: edges are enough."""
        return False

    def prepare(self, store: Store, relation: int) -> Draw:
        """Return the strategy itself, which needs no tables."""
        return self

    def count(self, rows: OwnedRows, positions: I64, counts: I64) -> None:
        """See :class:`.Draw`."""
        dst = rows.to_count(self.fanout, self.replace)
        count_uniform(dst, rows.edges.indptr, rows.first_row, positions, rows.scratch, counts)
        if len(rows.excluded):
            shorten_rows(dst, rows.excluded, positions, rows.scratch, counts)

    def choose(self, rows: OwnedRows, positions: I64, offsets: I64, picks: I64) -> None:
        """See :class:`.Draw`."""
        choose_uniform(rows.destinations(self.fanout, self.replace), positions, rows.scratch, offsets, picks)
        if len(rows.excluded):
            step_over(rows.excluded, positions, rows.scratch.begins, rows.scratch, offsets, picks)
