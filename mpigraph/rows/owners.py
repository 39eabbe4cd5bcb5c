"""Update ownership: the one trainer that writes each row, on the node of the host that holds it.

A host that trains owns its own rows. A server's rows are divided evenly among the trainers on its node, so that all of
them work, also where there are fewer trainers than servers. Every trainer computes the same table.
"""

from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I64
from mpigraph.kernels.row_ops import order_by_range
from mpigraph.mpi.world import World


class OwnedRange(NamedTuple):
    """Consecutive rows of one host with one owner.

    Attributes:
        host: the host that holds them.
        first: the first global row.
        last: one behind the last global row.
        rows: the same rows, counted from the host's first one.
    """

    host: int
    first: int
    last: int
    rows: slice


class RowOwners:
    """The owners of rows that are divided over the hosts at some offsets.

    Attributes:
        bounds: int64[R + 1], ascending: range r is ``[bounds[r], bounds[r + 1])``.
        trainers: int64[R], the owner of each range (its rank among the trainers).
    """

    def __init__(self, world: World, offsets: I64) -> None:
        """Compute the table; host h holds the rows ``[offsets[h], offsets[h + 1])`` (int64[H + 1])."""
        self._offsets = offsets
        self._me = int(np.searchsorted(world.trainer_ranks, world.rank))
        of_nodes = np.argsort(world.nodes_of_trainers, kind="stable")  # the trainers, node by node
        sizes = np.bincount(world.nodes_of_trainers)
        begins = np.cumsum(sizes) - sizes
        place = np.searchsorted(world.trainer_ranks, world.hosts)  # of a host that trains, among the trainers
        trains = world.trainer_ranks.take(place, mode="clip") == world.hosts
        pieces = np.where(trains, 1, sizes[world.nodes_of_hosts])
        host = np.repeat(np.arange(len(world.hosts)), pieces)
        piece = np.arange(len(host)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        rows = np.diff(offsets)
        self._hosts = host
        self.bounds = np.append(0, offsets[host] + rows[host] * (piece + 1) // pieces[host])
        peers = of_nodes.take(begins[world.nodes_of_hosts[host]] + piece, mode="clip")
        self.trainers = np.where(trains[host], place[host], peers)
        self._by_trainer = np.argsort(self.trainers, kind="stable")
        self._begins = np.append(0, np.cumsum(np.bincount(self.trainers, minlength=len(world.trainer_ranks))))

    def route(self, ids: I64) -> tuple[I64, I64]:
        """Sort positions by the owner of their row; equal rows keep their order.

        Args:
            ids: int64[n], rows that exist.

        Returns:
            ``order`` int64[n], positions in ``ids``, and ``counts`` int64[T]: the first ``counts[0]`` are for trainer
            0, and so on.
        """
        order, which, bounds = order_by_range(ids, self.bounds)
        trainers = self.trainers[which]
        counts = np.zeros(len(self._begins) - 1, np.int64)
        np.add.at(counts, trainers, np.diff(bounds))
        if (np.diff(trainers) >= 0).all():
            return order, counts
        pieces = np.argsort(trainers, kind="stable").tolist()
        return np.concatenate([order[bounds[i] : bounds[i + 1]] for i in pieces]), counts

    def ranges(self, trainer: int | None = None) -> list[OwnedRange]:
        """Return the ranges that a trainer owns, by default this one; without empty ones."""
        which = self._me if trainer is None else trainer
        owned = []
        for r in self._by_trainer[self._begins[which] : self._begins[which + 1]].tolist():
            first, last = self.bounds[r : r + 2].tolist()
            if first < last:
                host = int(self._hosts[r])
                begin = int(self._offsets[host])
                owned.append(OwnedRange(host, first, last, slice(first - begin, last - begin)))
        return owned
