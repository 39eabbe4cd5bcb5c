"""Update ownership: the one trainer that writes each row, on the node of its host; gradients pushed to their owners.

A host that trains owns its own rows. A server's rows are divided evenly among the trainers on its node, so that all of
them work, also where there are fewer trainers than servers. Every trainer computes the same table.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from mpigraph.arrays import F32, I64, Array
from mpigraph.collective import collective
from mpigraph.errors import CollectiveError
from mpigraph.kernels.row_ops import as_words, move_rows, order_by_range
from mpigraph.mpi.agree import agree
from mpigraph.mpi.coroutine import Coroutine
from mpigraph.mpi.messages import FAILED, OK, Header, alltoall
from mpigraph.mpi.wait import no_way_back
from mpigraph.mpi.world import World
from mpigraph.rows.transport import nothing


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


# Push rows, such as gradients, to their owners, from all ranks at once.
#
# A push is three non-blocking collective steps, in which every rank takes part, also with nothing to send::
#
#     Ialltoall(headers)     a key that identifies the push, status, number of rows
#     Ialltoallv(ids)        of the rows, 32 or 64 bits
#     Ialltoallv(rows)       float32; MPI-3 counts are 32-bit, so they count rows
#
# A rank that cannot push because of an error takes part all the same; its header says so, and every rank raises. Rows
# that a rank pushes to itself stay where they are. The push adds nothing up, and rows arrive in a fixed order: by rank,
# then as pushed. So sums do not depend on which message came first.

_Empty = Callable[[Sequence[int], npt.DTypeLike], Array]


@dataclass(frozen=True)
class Outgoing:
    """The rows that one rank pushes.

    Attributes:
        ids: int32 or int64 [n], the same dtype on every rank; sorted by destination.
        rows: float32[n, width], C-contiguous, in any order.
        order: int64[n]: ``ids[i]`` is the id of ``rows[order[i]]``.
        counts: int64[size], the number of ids for each rank.
    """

    ids: Array
    rows: F32
    order: I64
    counts: I64

    @classmethod
    def nothing(cls, size: int, width: int, dtype: npt.DTypeLike) -> "Outgoing":
        """Return a push without rows for any of ``size`` ranks."""
        rows = np.empty((0, width), np.float32)
        return cls(np.empty(0, dtype), rows, np.empty(0, np.int64), np.zeros(size, np.int64))


@dataclass(frozen=True)
class Pushed:
    """The rows that all ranks pushed to this one, in rank order, then as pushed.

    Attributes:
        ids: int32 or int64 [m].
        sources: int64[m]: row i is ``arrived[s]``, or ``own[~s]`` if s < 0, for s = ``sources[i]``.
        own: float32[n, width], the rows that this rank pushed, to any rank.
        arrived: float32[k, width], the rows of other ranks.
    """

    ids: Array
    sources: I64
    own: F32
    arrived: F32


@collective("comm")
def push_rows(
    comm: MPI.Comm,
    what: str,
    key: int,
    described: str,
    outgoing: Outgoing,
    empty: _Empty,
    error: BaseException | None = None,
    met: Callable[[], None] = nothing,
) -> Coroutine[Pushed]:
    """Send each rank the rows that it owns.

    Args:
        comm: the ranks.
        what: names the push in messages.
        key: a number that identifies the push; different keys are an error.
        described: the meaning of the key, for that error.
        outgoing: the rows that this rank pushes.
        empty: makes the large arrays, as ``np.empty`` does.
        error: the reason why this rank cannot push, if there is one.
        met: called once every rank is here.

    Raises:
        CollectiveError: the keys differ; on every rank.
        MPIGraphError: ``error``, on every rank.
    """
    begin, end = _own(outgoing.counts, comm.rank)
    with no_way_back():
        header = Header(comm, key, OK if error is None else FAILED, outgoing.counts)
        leaving = _pack(outgoing, begin, end, empty)  # while the headers travel
        yield header.request
        met()
        if (header.operations != header.operations[0]).any():
            astray = CollectiveError(f"here it is {what}: {described}")
            yield from agree(comm, "a push of different gradients", astray, "trainer")
        if (header.statuses == FAILED).any():
            yield from agree(comm, what, error, "trainer")
        coming = header.counts.copy()
        ids = yield from alltoall(comm, outgoing.ids, outgoing.counts, coming)
        first, last = _own(coming, comm.rank)
        sources = np.empty(len(ids), np.int64)
        sources[:first] = np.arange(first)
        sources[first:last] = ~outgoing.order[begin:end]
        sources[last:] = np.arange(first, first + len(ids) - last)
        going = outgoing.counts.copy()
        going[comm.rank] = coming[comm.rank] = 0
        arrived = empty((int(coming.sum()), outgoing.rows.shape[1]), np.float32)
        yield from alltoall(comm, leaving, going, coming, arrived)
        return Pushed(ids, sources, outgoing.rows, arrived)


def _pack(outgoing: Outgoing, begin: int, end: int, empty: _Empty) -> F32:
    """Return the rows for other ranks, sorted by destination: all except ``order[begin:end]``."""
    order = outgoing.order
    rows = outgoing.rows
    leaving: F32 = empty((len(order) - (end - begin), rows.shape[1]), np.float32)
    words = as_words(rows)
    out = as_words(leaving)
    if out.size:
        words = words.view(out.dtype)
        move_rows(words, order[:begin], 0, out, None)
        move_rows(words, order[end:], 0, out[begin:], None)
    return leaving


def _own(counts: I64, rank: int) -> tuple[int, int]:
    """Return the begin and end of one rank's rows among rows sorted by rank."""
    begin = int(counts[:rank].sum())
    return begin, begin + int(counts[rank])
