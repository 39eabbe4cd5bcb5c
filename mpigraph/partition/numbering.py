"""The new ids of all nodes: by part, then by original id."""

import numpy as np

from mpigraph.arrays import I32, I64, Array
from mpigraph.collective import collective
from mpigraph.kernels.csr import count_keys, number_by_key
from mpigraph.partition.exchange import Exchange, Route, owners_of


class Numbering:
    """New ids of all nodes.

    Args:
        exchange: the ranks.
        bounds: int64[ranks + 1], the nodes that each rank owns.
        bases: int64[types + 1], where each type begins.
        parts: int32[own nodes].
        num_parts: number of parts.

    Attributes (besides the first three arguments):
        offsets: for each type int64[parts + 1], the new ids of each part.
        new_ids: int64[own nodes].
    """

    @collective("ranks")
    def __init__(self, exchange: Exchange, bounds: I64, bases: I64, parts: I32, num_parts: int) -> None:
        self.exchange = exchange
        self.bounds = bounds
        self.bases = bases
        num_types = len(bases) - 1
        groups = parts.astype(np.int64)
        for ntype_id in range(num_types):
            groups[self.own(ntype_id)] += ntype_id * num_parts
        table = np.zeros((exchange.size, num_types * num_parts), np.int64)
        table[exchange.rank] = np.bincount(groups, minlength=num_types * num_parts)
        table = exchange.total(table)
        totals = table.sum(axis=0).reshape(num_types, num_parts)
        self.offsets = [np.concatenate([[0], np.cumsum(counts)]).astype(np.int64) for counts in totals]
        first = np.concatenate([offsets[:-1] for offsets in self.offsets])
        self.new_ids = np.empty(len(groups), np.int64)
        number_by_key(groups, first + table[: exchange.rank].sum(axis=0), self.new_ids)
        self._dtype = np.int32 if bases[-1] < 2**31 else np.int64

    def own(self, ntype_id: int) -> slice:
        """Return the range of the own nodes that are of a type."""
        first, last = self.bounds[self.exchange.rank : self.exchange.rank + 2]
        begin, end = np.clip(self.bases[ntype_id : ntype_id + 2], first, last) - first
        return slice(int(begin), int(end))

    def own_ids(self, ntype_id: int) -> I64:
        """Return int64[n], the original ids of the own nodes of a type, as ids of that type."""
        own = self.own(ntype_id)
        shift = int(self.bounds[self.exchange.rank] - self.bases[ntype_id])
        return np.arange(own.start + shift, own.stop + shift)

    @collective("ranks")
    def of(self, ids: I64, met: I64 | None = None) -> Array:
        """Return the new ids of nodes: int32[n], or int64[n] in a graph of 2**31 nodes and more.

        Args:
            ids: int64[n], global original ids.
            met: int64[own nodes], counts how often ranks asked for each node.
        """
        route = Route(self.exchange, owners_of(self.bounds, ids))
        asked = route.there(ids.astype(self._dtype)[:, None])[:, 0].astype(np.int64)
        asked -= self.bounds[self.exchange.rank]
        if met is not None:
            count_keys(asked, 0, met)
        return route.back(self.new_ids[asked].astype(self._dtype)[:, None])[:, 0]
