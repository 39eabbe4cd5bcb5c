"""One lock per host, taken by whoever writes rows that the host holds.

A spin lock by compare-and-swap on a window of one word for each host (as in mpi4py's ``util.sync``). It is given back
by compare-and-swap, too: MPI promises that operations on one word are atomic to each other only if they are the same
(MPI 4.1, 12.7.1). ``Win.Lock`` with ``LOCK_EXCLUSIVE`` would not do: MPI lets it return before the lock is held (MPI
4.1, 12.5.3).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

from mpigraph.errors import CollectiveError
from mpigraph.mpi.compat import as_array, check_memory_model
from mpigraph.mpi.wait import PEERS_COMPUTE, Backoff
from mpigraph.mpi.world import World

__all__ = ["HostMutex"]

_SLOT = 64  # bytes for each lock: a cache line of its own
_FREE = 0  # else 1 + the rank that holds it


class HostMutex:
    """Mutual exclusion between writers of one host's rows.

    Collective on ``world.comm``: construction and :meth:`close`.
    """

    def __init__(self, world: World, far: bool) -> None:
        """Make one free lock on each host, for all ranks if ``far``, else for those of the host's node."""
        self._world = world
        nbytes = _SLOT if world.is_host else 0
        if far:
            comm = world.comm
            self._win = MPI.Win.Allocate(nbytes, 8, comm=comm)
        else:  # the processor's own atomic operations, with any MPI
            comm = world.node
            self._win = MPI.Win.Allocate_shared(nbytes, 8, comm=comm)
        self._ranks = MPI.Group.Translate_ranks(world.comm.group, world.hosts.tolist(), comm.group)
        if world.is_host:
            as_array(self._win.tomemory(), np.int64)[:] = _FREE
        check_memory_model(self._win)
        self._win.Lock_all(MPI.MODE_NOCHECK)
        self._win.Sync()
        world.comm.Barrier()

    @contextmanager
    def hold(self, host: int) -> Iterator[None]:
        """Hold the lock of ``host`` inside the ``with`` block. One-sided; the target does nothing."""
        backoff = Backoff()
        with self._world.watch(f"taking the write lock of rank {self._world.hosts[host]}"):
            while not self.take(host):
                self._world.comm.Iprobe()  # who holds it may be writing to us, which Open MPI does when we are in MPI
                backoff.pause(PEERS_COMPUTE)
        try:
            yield
        finally:
            self.release(host)

    def take(self, host: int) -> bool:
        """Take the lock of ``host`` if it is free, and return whether it was. One-sided."""
        return self._swap(host, _FREE, 1 + self._world.rank) == _FREE

    def release(self, host: int) -> None:
        """Give back the lock of ``host``. One-sided.

        Raises:
            CollectiveError: this rank does not hold it: MPI's atomic operations are none, or somebody wrote to it.
        """
        mine = 1 + self._world.rank
        seen = self._swap(host, mine, _FREE)
        if seen != mine:
            rank = self._world.hosts[host]
            raise CollectiveError(f"the write lock of rank {rank} was lost: it holds {seen} instead of {mine}")

    def _swap(self, host: int, expected: int, value: int) -> int:
        new, old, seen = np.array([[value], [expected], [-1]], np.int64)
        rank = self._ranks[host]
        self._win.Compare_and_swap(new, old, seen, rank, 0)
        self._win.Flush(rank)
        return int(seen[0])

    def close(self) -> None:
        """Free the locks; a second call does nothing."""
        win, self._win = self._win, MPI.WIN_NULL
        if win:
            win.Unlock_all()
            win.Free()
