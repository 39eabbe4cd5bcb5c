"""The interface of a transport, which reads rows of hosts on other nodes into places of an array; the lock of writers.

A read names the rows of every host at once, so that all requests are outstanding together, and the caller's own work
for the meantime.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import CollectiveError
from mpigraph.kernels.rng import first_alike
from mpigraph.mpi.compat import as_array, check_memory_model
from mpigraph.mpi.wait import until
from mpigraph.mpi.world import World

# One lock per host for the writers of its rows, in the order in which they ask: ranks of its node, and the host itself
# for those of other nodes.
#
# A ticket lock on a window of two words for each host: the next ticket, and the one whose turn it is. Operations on a
# word only add or read: MPI promises that operations on one word are atomic to each other only if they are the same, or
# ``MPI_NO_OP`` (MPI 4.1, 12.7.1). ``Win.Lock`` with ``LOCK_EXCLUSIVE`` would not do: MPI lets it return before the lock
# is held (MPI 4.1, 12.5.3).
#
# A rank that has drawn a ticket must wait for its turn and release the lock: all later tickets wait for it. A rank that
# dies in between ends the job, as anywhere.

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
        with self._world.watch(f"taking the write lock of rank {self._world.hosts[host]}"):
            ticket = self.draw(host)
            until(lambda: not self.ahead(host, ticket))
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


MAX_ROWS = 1 << 20  # of one request: bounds its memory


class Window(Protocol):
    """The part of a window (:class:`.RowWindow`) that transports use; the attributes are described there."""

    number: int
    win: MPI.Win
    begin: int
    row: MPI.Datatype
    row_bytes: int
    words: Array | None
    like: Array


@dataclass(frozen=True)
class RemoteRows:
    """Rows of one remote host to be read or written.

    Attributes:
        rank: the host's rank in ``world.comm``.
        rows: int64[n], the rows, counted from the host's first one; to be read each once.
        positions: int64[n], ascending: the position of each row in the caller's array.
    """

    rank: int
    rows: I64
    positions: I64

    def once(self) -> tuple["RemoteRows", I64, I64]:
        """Return the distinct ones of any rows, each at its first position.

        Returns:
            The rows; and int64[r], the positions of the others, and those at which the same rows will be.
        """
        first = np.empty(len(self.rows), np.int64)
        if not first_alike(self.rows, first):
            return self, self.positions[:0], self.positions[:0]
        is_first = first == np.arange(len(first))
        distinct = replace(self, rows=self.rows[is_first], positions=self.positions[is_first])
        return distinct, self.positions[~is_first], self.positions[first[~is_first]]

    def last(self) -> "RemoteRows":
        """Return the distinct ones of rows to write, each at its last position, from the last one on."""
        backwards = replace(self, rows=self.rows[::-1].copy(), positions=self.positions[::-1])
        return backwards.once()[0]

    def requests(self) -> list["RemoteRows"]:
        """Divide the rows into requests of bounded size."""
        cuts = [slice(at, at + MAX_ROWS) for at in range(0, len(self.rows), MAX_ROWS)]
        return [replace(self, rows=self.rows[cut], positions=self.positions[cut]) for cut in cuts]


def nothing() -> None:
    """Do nothing: the caller's work when none is left."""


class Transport:
    """A way to read remote rows. Several threads may read at once.

    Attributes:
        name: the name in settings and figures.
        how: the same for readers: "random remote rows" are read ``how``.
    """

    name: ClassVar[str]
    how: ClassVar[str]

    def __init__(self, world: World) -> None:
        """Begin in a job of several nodes."""
        self.world = world

    def read(self, window: Window, remote: list[RemoteRows], out: Array, meanwhile: Callable[[], None]) -> None:
        """Fill ``out`` (2-D, whole rows as words) from remote hosts, and call ``meanwhile`` once while that goes on.

        An error of ``meanwhile`` is raised once MPI does not write to memory any more.

        One-sided for the caller: no other rank has to make a call. Raises ClosedError if a host has closed the window.
        """
        raise NotImplementedError
