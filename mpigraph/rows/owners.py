"""Update ownership: which trainer writes which rows. Each row has one owner, near the host that holds it.

A host that trains owns its own rows. A server's rows are divided evenly among the trainers on its node, so that all of
them work, also where there are fewer trainers than servers. Every trainer computes the same table.
"""

from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I64
from mpigraph.kernels.row_ops import split_by_range
from mpigraph.mpi.world import World

__all__ = ["OwnedRange", "RowOwners"]


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
    """The owners of rows that are cut over the hosts at some offsets.

    Attributes:
        bounds: int64[R + 1], ascending: range r is ``[bounds[r], bounds[r + 1])``.
        trainers: int64[R], the owner of each range (its rank among the trainers).
    """

    def __init__(self, world: World, offsets: I64) -> None:
        """Compute the table; host h holds the rows ``[offsets[h], offsets[h + 1])`` (int64[H + 1])."""
        self._offsets = offsets
        self._num_trainers = len(world.trainer_ranks)
        self._me = int(np.searchsorted(world.trainer_ranks, world.rank))
        bounds: list[int] = [0]
        trainers: list[int] = []
        for host, rank in enumerate(world.hosts.tolist()):
            ranks = world.trainers_of_host(host)
            ranks = [rank] if rank in ranks else ranks
            begin, end = offsets[host : host + 2].tolist()
            bounds += [begin + (end - begin) * (k + 1) // len(ranks) for k in range(len(ranks))]
            trainers += np.searchsorted(world.trainer_ranks, ranks).tolist()
        self.bounds = np.array(bounds, np.int64)
        self.trainers = np.array(trainers, np.int64)

    def route(self, ids: I64) -> tuple[I64, I64]:
        """Sort positions by the owner of their row; equal rows keep their order.

        Args:
            ids: int64[n], rows that exist.

        Returns:
            ``order`` int64[n], positions in ``ids``, and ``counts`` int64[T]: the first ``counts[0]`` are for trainer
            0, and so on.
        """
        counts = np.zeros(self._num_trainers, np.int64)
        by_range = sorted(split_by_range(ids, self.bounds), key=lambda found: int(self.trainers[found[0]]))
        for which, positions in by_range:
            counts[self.trainers[which]] += len(positions)
        order = np.concatenate([positions for _, positions in by_range]) if by_range else np.empty(0, np.int64)
        return order, counts

    def ranges(self, trainer: int | None = None) -> list[OwnedRange]:
        """The ranges that a trainer owns, by default this one; empty ranges are left out."""
        found = []
        for r in np.flatnonzero(self.trainers == (self._me if trainer is None else trainer)).tolist():
            first, last = self.bounds[r : r + 2].tolist()
            if first < last:
                host = int(np.searchsorted(self._offsets, first, side="right")) - 1
                begin = int(self._offsets[host])
                found.append(OwnedRange(host, first, last, slice(first - begin, last - begin)))
        return found
