"""Among the edges that the root of a destination's tree may see by its time."""

from dataclasses import dataclass, field, replace

import numpy as np

from mpigraph.arrays import I64, U8
from mpigraph.kernels.temporal import choose_temporal, count_temporal
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.sampling.strategies.strategy import Draw, OwnedRows, Strategy
from mpigraph.store.derived import EdgeTimes, SortedEdges
from mpigraph.store.store import Store

_NO_MASK = np.empty(0, np.uint8)


@dataclass(frozen=True)
class Temporal(Strategy):
    """Choose, of the edges that are not above a time, each with the same probability, or the newest.

    Attributes:
        replace: with replacement.
        mask: number of a tensor of bool, of edges that may be chosen; 0 without a mask.
        times: number of the tensor of times by which the relation's edges are sorted.
        strict: leave out edges of exactly the root's time, too.
        last: choose among the newest ``fanout`` edges alone.
        window: most by which an edge may be older than the root; -1 without a limit.
        until: int64[n], the times of the destinations' roots.
    """

    tag = 4
    columns = ("until",)
    tables = ("mask", "times")
    replace: bool
    mask: int
    times: int
    strict: bool
    last: bool
    window: int
    until: I64 = field(default_factory=lambda: np.empty(0, np.int64))

    def with_root_times(self, times: I64) -> "Temporal":
        """See :class:`.Strategy`."""
        return replace(self, until=times)

    def prepare(self, store: Store, relation: int) -> Draw:
        """Look up the sorted edges and the mask."""
        edges = store.derived(EdgeTimes, self.times, relation).edges
        return _TemporalDraw(self, edges, store.tensor(self.mask) if self.mask else None)


class _TemporalDraw:
    def __init__(self, how: Temporal, edges: SortedEdges, mask: RowTensor | None) -> None:
        self._how = how
        self._edges = edges  # one object for both passes, whatever is written meanwhile
        self._mask = mask

    def count(self, rows: OwnedRows, positions: I64, counts: I64) -> None:
        """See :class:`.Draw`."""
        count_temporal(
            rows.to_count(self._how.fanout, self._how.replace),
            rows.edges.indptr,
            rows.first_row,
            self._edges.times(rows.host),
            self._edges.order(rows.host),
            self._how.until,
            self._how.strict,
            self._how.window,
            self._allowed(rows.host),
            rows.excluded,
            positions,
            rows.scratch,
            counts,
        )

    def choose(self, rows: OwnedRows, positions: I64, offsets: I64, picks: I64) -> None:
        """See :class:`.Draw`."""
        choose_temporal(
            rows.destinations(self._how.fanout, self._how.replace),
            rows.rows,
            rows.edges.indptr,
            rows.first_row,
            self._edges.order(rows.host),
            self._how.last,
            self._allowed(rows.host),
            rows.excluded,
            positions,
            rows.scratch,
            offsets,
            picks,
        )

    def _allowed(self, host: int) -> U8:
        return _NO_MASK if self._mask is None else self._mask.window.memory(host)
