"""One lock per host for the writers of its rows, in the order in which they ask: ranks of its node, and the host itself
for those of other nodes.

A ticket lock on a window of two words for each host: the next ticket, and the one whose turn it is. Operations on a
word only add or read: MPI promises that operations on one word are atomic to each other only if they are the same, or
``MPI_NO_OP`` (MPI 4.1, 12.7.1). ``Win.Lock`` with ``LOCK_EXCLUSIVE`` would not do: MPI lets it return before the lock
is held (MPI 4.1, 12.5.3).

A rank that has drawn a ticket must wait for its turn and release the lock: all later tickets wait for it. A rank that
dies in between ends the job, as anywhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

from mpigraph.collective import collective
from mpigraph.errors import CollectiveError
from mpigraph.mpi.compat import as_array, check_memory_model
from mpigraph.mpi.wait import TRANSFER, Backoff
from mpigraph.mpi.world import World

_SLOT = 64  # bytes for each word: a cache line of its own
_NEXT = 0
_TURN = 1
_WORD = 8  # bytes


class HostMutex:
    """Mutual exclusion between writers of one host's rows, first come, first served."""

    @collective("world.comm")
    def __init__(self, world: World) -> None:
        """Make one free lock on each host, for the ranks of its node."""
        self._world = world
        nbytes = 2 * _SLOT if world.is_host else 0
        self._win = MPI.Win.Allocate_shared(nbytes, _WORD, comm=world.node)
        self._ranks = MPI.Group.Translate_ranks(world.comm.group, world.hosts.tolist(), world.node.group)
        if world.is_host:
            as_array(self._win.tomemory(), np.int64)[:] = 0
        check_memory_model(self._win)
        self._win.Lock_all(MPI.MODE_NOCHECK)
        self._win.Sync()
        world.comm.Barrier()

    @contextmanager
    def hold(self, host: int) -> Iterator[None]:
        """Hold the lock of ``host``, of this node, inside the ``with`` block."""
        backoff = Backoff()
        with self._world.watch(f"taking the write lock of rank {self._world.hosts[host]}"):
            ticket = self.draw(host)
            while self.ahead(host, ticket):
                backoff.pause(TRANSFER)
        try:
            yield
        finally:
            self.release(host, ticket)

    def draw(self, host: int) -> int:
        """Draw a ticket for the lock of ``host``; turns come in the order of tickets."""
        return self._fetch(host, _NEXT, 1)

    def ahead(self, host: int, ticket: int) -> int:
        """Return the number of turns before that of ``ticket``: its owner holds the lock when it is 0.

        Raises CollectiveError if its turn is over; see :meth:`release`.
        """
        turn = self._fetch(host, _TURN, 0)
        if turn > ticket:
            raise self._lost(host, ticket, turn)
        return ticket - turn

    def release(self, host: int, ticket: int) -> None:
        """Give back the lock of ``host``.

        Raises:
            CollectiveError: it is not this ticket's turn: MPI's operations are not atomic, or the word was overwritten.
        """
        turn = self._fetch(host, _TURN, 1)
        if turn != ticket:
            raise self._lost(host, ticket, turn)

    def _lost(self, host: int, ticket: int, turn: int) -> CollectiveError:
        rank = self._world.hosts[host]
        return CollectiveError(f"the write lock of rank {rank} was lost: it is the turn of {turn} instead of {ticket}")

    def _fetch(self, host: int, word: int, add: int) -> int:
        """Read a word, and add 1 to it or nothing."""
        one, seen = np.array([[add], [-1]], np.int64)
        rank = self._ranks[host]
        self._win.Fetch_and_op(one, seen, rank, word * _SLOT // _WORD, MPI.SUM if add else MPI.NO_OP)
        self._win.Flush(rank)
        return int(seen[0])

    @collective("world.comm")
    def close(self) -> None:
        """Free the locks; a second call does nothing."""
        win, self._win = self._win, MPI.WIN_NULL
        if win:
            win.Unlock_all()
            win.Free()
