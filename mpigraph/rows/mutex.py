"""One lock per host, taken by whoever writes rows that the host holds.

A spin lock by compare-and-swap on a one-word window (as in mpi4py's ``util.sync``, here one word for each host).
``Win.Lock`` with ``LOCK_EXCLUSIVE`` would not do: MPI lets it return before the lock is held (MPI 4.1, 12.5.3).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64
from mpigraph.errors import MPIGraphError
from mpigraph.mpi.compat import as_array, check_memory_model
from mpigraph.mpi.wait import PEERS_COMPUTE, Backoff
from mpigraph.mpi.world import World

__all__ = ["HostMutex"]


class HostMutex:
    """Mutual exclusion between writers of one host's rows.

    Collective on ``world.comm``: construction and :meth:`close`.
    """

    def __init__(self, world: World) -> None:
        """Make one free lock on each host."""
        self._world = world
        nbytes = 8 if world.is_host else 0
        if world.all_near:  # the processor's own atomic operations, with any MPI; ranks are the same in both
            self._win = MPI.Win.Allocate_shared(nbytes, 8, comm=world.node)
        else:
            self._win = MPI.Win.Allocate(nbytes, 8, comm=world.comm)
        if world.is_host:
            as_array(self._win.tomemory(), np.int64)[:] = 0
        check_memory_model(self._win)
        self._win.Lock_all(MPI.MODE_NOCHECK)
        self._win.Sync()
        world.comm.Barrier()

    @contextmanager
    def hold(self, host: int) -> Iterator[None]:
        """Hold the lock of ``host`` inside the ``with`` block. One-sided; the target does nothing."""
        rank = int(self._world.hosts[host])
        free = np.zeros(1, np.int64)
        mine = np.array([1 + self._world.rank], np.int64)
        seen = np.empty(1, np.int64)
        backoff = Backoff()
        with self._world.watch(f"taking the write lock of rank {rank}"):
            while True:
                self._swap(free, mine, seen, rank)
                if seen[0] == free[0]:
                    break
                self._world.comm.Iprobe()  # who holds it may be writing to us, which Open MPI does when we are in MPI
                backoff.pause(PEERS_COMPUTE)
        try:
            yield
        finally:
            self._swap(mine, free, seen, rank)
            if seen[0] != mine[0]:
                raise MPIGraphError(f"the write lock of rank {rank} was lost: it holds {seen[0]} instead of {mine[0]}")

    def _swap(self, before: I64, after: I64, seen: I64, rank: int) -> None:
        """Change the word of ``rank`` to ``after`` if it is ``before``; ``seen`` becomes what it was.

        Nothing else ever changes it: MPI does not promise that other operations are atomic beside this one.
        """
        self._win.Compare_and_swap(after, before, seen, rank, 0)
        self._win.Flush(rank)

    def close(self) -> None:
        """Free the locks; a second call does nothing."""
        win, self._win = self._win, MPI.WIN_NULL
        if win:
            win.Unlock_all()
            win.Free()
