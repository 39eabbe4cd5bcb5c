"""Arrays from every rank to every rank, the header of a collective step, counters of messages, and gates.

All operations are non-blocking (:mod:`.coroutine`): blocking MPI calls would spin on a core that a rank may share. MPI
sees all ranks in each step; Python code only those that have something to send. One thread at a time makes the
collective steps of a communicator. Requests to single ranks are in :mod:`.hosts`.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import TypeAlias
from weakref import WeakSet

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import ClosedError, CollectiveError
from mpigraph.mpi.coroutine import Coroutine, run
from mpigraph.mpi.deadlines import WAITS
from mpigraph.mpi.wait import NOW, until
from mpigraph.mpi.world import Trainers
from mpigraph.trace import count

Comm: TypeAlias = MPI.Comm

OK, FAILED = 0, 1  # status of an answer, or of a rank in a header
HEAD = 2  # words before an answer: its status and length
_WORDS = {1: MPI.BYTE, 4: MPI.INT32_T, 8: MPI.INT64_T}


class NotOpenHere(CollectiveError):
    """The object of a request is not open on this rank, or not yet: an owner may leave a collective call last."""


class Gate:
    """A ``with`` block for users of an object that is closed one day; reentrant, for any number of threads."""

    def __init__(self, closed: str) -> None:
        """``closed`` is the text of the error once the gate is shut."""
        self._closed = closed
        self._users: dict[int, int] = {}  # by thread, the blocks that it is in
        self._shut = False
        _gates.add(self)

    def __enter__(self) -> None:
        thread = get_ident()
        self._users[thread] = 1 + self._users.get(thread, 0)
        if self._shut and self._users[thread] == 1:  # after the line above: shut, and then look who is inside
            self.__exit__()
            raise ClosedError(self._closed)

    def __exit__(self, *_: object) -> None:
        thread = get_ident()
        self._users[thread] -= 1
        if not self._users[thread]:
            del self._users[thread]

    def shut(self) -> bool:
        """Refuse new users; return whether other threads are still inside."""
        self._shut = True
        return any(thread != get_ident() for thread in list(self._users))

    def drain(self, what: str) -> None:
        """Refuse new users, and wait for those of other threads; ``what`` names the wait. Blocking."""
        with WAITS.watch(what):
            until(lambda: not self.shut())

    def forget_threads(self) -> None:
        """Forget the users of a forked process's parent: of its threads only this one goes on."""
        self._users = {thread: blocks for thread, blocks in self._users.items() if thread == get_ident()}


def _begin_anew() -> None:
    for gate in list(_gates):
        gate.forget_threads()


_gates: "WeakSet[Gate]" = WeakSet()
os.register_at_fork(after_in_child=_begin_anew)


def sent(to: int, nbytes: int) -> None:
    """Count a message to a rank of the job."""
    count("sent_messages", 1, to)
    count("sent_bytes", nbytes, to)


def received(source: int, nbytes: int) -> None:
    """Count bytes from a rank of the job."""
    count("received_bytes", nbytes, source)


@contextmanager
def _row_type(row_bytes: int) -> Iterator[MPI.Datatype]:
    """Make the datatype of one row: MPI-3 counts are 32-bit, so they count rows."""
    if row_bytes in _WORDS:
        yield _WORDS[row_bytes]
        return
    row = MPI.BYTE.Create_contiguous(row_bytes).Commit()
    try:
        yield row
    finally:
        row.Free()


@collective("comm")
def alltoall(comm: MPI.Comm, rows: Array, going: I64, coming: I64, out: Array | None = None) -> Coroutine[Array]:
    """Send ``going[r]`` consecutive rows to rank r, where each rank knows the numbers that come.

    Args:
        comm: the ranks.
        rows: [n, ...], C-contiguous, with rows of as many bytes on all ranks.
        going: int64[size], below 2**31 each.
        coming: int64[size], the number of rows that come from each rank.
        out: C-contiguous memory for the rows that come; new memory if None.

    Returns:
        The rows that came, those of rank 0 first.
    """
    if out is None:
        out = np.empty((int(coming.sum()), *rows.shape[1:]), rows.dtype)
    row_bytes = rows.dtype.itemsize * math.prod(rows.shape[1:])
    _count_rows(comm, going, coming, row_bytes)
    with _row_type(row_bytes) as row:
        yield comm.Ialltoallv([rows, going, row], [out, coming, row])
    return out


def _count_rows(comm: MPI.Comm, going: I64, coming: I64, row_bytes: int) -> None:
    ranks = comm.ranks if isinstance(comm, Trainers) else range(comm.size)
    for counts, add in ((going, sent), (coming, received)):
        for index in np.flatnonzero(counts).tolist():
            if index != comm.rank:
                add(int(ranks[index]), int(counts[index]) * row_bytes)


@collective("comm")
def exchange_rows(comm: MPI.Comm, rows: Array, counts: I64) -> tuple[Array, I64]:
    """Send ``counts[r]`` consecutive rows to rank r. Blocking.

    Args:
        comm: the ranks.
        rows: [n, columns], C-contiguous, of one dtype and number of columns on all ranks.
        counts: int64[ranks], below 2**31 each.

    Returns:
        The rows received, those of rank 0 first, and the number from each rank.
    """
    coming = np.empty(comm.size, np.int64)
    until(comm.Ialltoall(counts, coming).Test)
    nbytes = (len(rows) + int(coming.sum())) * rows.strides[0]
    return run(alltoall(comm, rows, counts, coming), policy=NOW, nbytes=nbytes), coming


@collective("comm")
def sum_over_ranks(comm: MPI.Comm, values: I64) -> I64:
    """Return the sum of every rank's array (int64, of one shape). Blocking."""
    total = np.empty_like(values)
    until(comm.Iallreduce(values, total).Test)
    return total


class Header:
    """The first step of a round or of a push, begun by construction.

    Attributes:
        request: completes when every rank's header is here.
        operations: int64[size], each rank's operation, once ``request`` is complete.
        statuses: int64[size], each rank's status.
        counts: int64[size], the number of rows or words from each rank.
    """

    @collective("comm")
    def __init__(self, comm: MPI.Comm, operation: int, status: int = OK, counts: I64 | int = 0) -> None:
        """Tell each rank operation, status and the number of rows or words that follow (int64[size], or none)."""
        self._sent = np.empty((comm.size, 3), np.int64)
        self._sent[:, 0] = operation
        self._sent[:, 1] = status
        self._sent[:, 2] = counts
        came = np.empty_like(self._sent)
        count("collective_bytes", self._sent.nbytes)
        self.request = comm.Ialltoall(self._sent, came)
        self.operations, self.statuses, self.counts = came.T


class Received:
    """The words that came from every rank: ``counts[r]`` of them from rank r, those of rank 0 first."""

    def __init__(self, words: I64, counts: I64) -> None:
        self.words = words
        self.counts = counts
        self._ends = np.cumsum(counts)

    def of(self, rank: int) -> I64:
        """Return the words of ``rank``, a view."""
        return self.words[self._ends[rank] - self.counts[rank] : self._ends[rank]]

    @property
    def senders(self) -> list[int]:
        """The ranks that sent words, ascending."""
        ranks: list[int] = np.flatnonzero(self.counts).tolist()
        return ranks


def in_rank_order(parts: Mapping[int, I64], size: int) -> tuple[I64, I64]:
    """Return the words for several ranks as one array, in rank order, and int64[size], the number for each rank."""
    counts = np.zeros(size, np.int64)
    if not parts:
        return np.empty(0, np.int64), counts
    ranks = sorted(parts)
    counts[ranks] = [len(parts[rank]) for rank in ranks]
    return np.concatenate([parts[rank] for rank in ranks]), counts
