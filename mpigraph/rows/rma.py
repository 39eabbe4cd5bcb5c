"""Remote rows by one-sided ``Get``: one for each host, whose target datatype lists the rows.

The host runs no code. This is fast where the fabric reads memory by itself; over TCP the host's MPI library walks the
list row by row, and ``rows/packed.py`` is faster. Rows arrive in the order in which they were asked for, so nothing is
sorted; those whose places lie side by side arrive there.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, ClassVar

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, Array
from mpigraph.kernels.row_ops import find_runs, move_rows
from mpigraph.mpi.coroutine import answered
from mpigraph.mpi.messages import received, sent
from mpigraph.mpi.wait import no_way_back
from mpigraph.mpi.world import World
from mpigraph.rows.segments import RowPool
from mpigraph.rows.transport import RemoteRows, Transport, Window, nothing
from mpigraph.trace import clock

# mpi4py takes displacements as a sequence of Python's integers: 0.9 ms for 15,000 rows, where MPI itself takes 0.2 ms.
# So MPI is called as mpi4py's module is linked with it; a handle is an int or a pointer.
_Handle: Any = ctypes.c_uint if MPI._sizeof(MPI.Datatype) == 4 else ctypes.c_size_t
_create_hindexed: Any = getattr(ctypes.CDLL(MPI.__file__), "MPI_Type_create_hindexed")  # noqa: B009
_create_hindexed.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, _Handle, ctypes.POINTER(_Handle)]


@contextmanager
def _listing(window: Window, rows: I64) -> Iterator[MPI.Datatype]:
    """Make a datatype that lists rows in their order, freed after the ``with`` block; MPI may still use it."""
    starts, lengths = find_runs(rows)
    starts *= window.row_bytes
    handle = _Handle()
    row = MPI._handleof(window.row)
    status = _create_hindexed(len(starts), lengths.ctypes.data, starts.ctypes.data, row, ctypes.byref(handle))
    if status != MPI.SUCCESS:
        raise MPI.Exception(status)
    listing = MPI.Datatype.fromhandle(handle.value).Commit()
    try:
        yield listing
    finally:
        listing.Free()


class _Get:
    """One outstanding ``Get``, begun by construction.

    Its memory is kept until a flush has succeeded, whatever fails before.
    """

    _begun: ClassVar[set["_Get"]] = set()

    def __init__(self, window: Window, remote: RemoteRows, out: Array, pool: RowPool) -> None:
        self._win = window.win
        self._remote = remote
        self._out = out
        rows, places = remote.rows, remote.positions
        first, last = int(places[0]), int(places[-1])  # places ascend
        self._in_place = last - first == len(places) - 1
        self._arrived = out[first : last + 1] if self._in_place else pool.empty((len(rows), *out.shape[1:]), out.dtype)
        with _listing(window, rows) as listing:
            self._begun.add(self)
            origin = [self._arrived.reshape(-1).view(np.uint8), len(rows), window.row]
            self._win.Get(origin, remote.rank, target=[window.begin, 1, listing])

    def finish(self) -> None:
        """Wait, and put the rows into their places."""
        rank = self._remote.rank
        begin = clock()  # what has come before made no thread wait
        self._win.Flush(rank)
        self._begun.discard(self)
        if not self._in_place:
            move_rows(self._arrived, None, 0, self._out, self._remote.positions)
        sent(rank, 0)
        received(rank, self._arrived.nbytes)
        answered(rank, begin)


class RmaTransport(Transport):
    """Reads remote rows with ``Get`` and ``Flush``."""

    name = "rma"
    how = "by one-sided Get"

    def __init__(self, world: World, pool: RowPool, wake: Callable[[Sequence[int]], None]) -> None:
        """Read rows of other nodes.

        Args:
            world: the job.
            pool: has memory for rows that arrive elsewhere than in their places.
            wake: makes hosts, given by rank, look at their messages often for a while: some networks move a host's rows
                only while it looks.
        """
        super().__init__(world)
        self._wake = wake
        self._pool = pool

    def read(self, window: Window, remote: list[RemoteRows], out: Array, meanwhile: Callable[[], None]) -> None:
        """See :class:`~mpigraph.rows.transport.Transport`. One-sided."""
        for step in zip_longest(*(rows.requests() for rows in remote)):  # one request to each host at a time
            self._read(window, [one for one in step if one is not None], out, meanwhile)
            meanwhile = nothing

    def _read(self, window: Window, requests: list[RemoteRows], out: Array, meanwhile: Callable[[], None]) -> None:
        self._wake([rows.rank for rows in requests])
        what = f"one-sided reads of rows of rank(s) {', '.join(str(rows.rank) for rows in requests)}"
        gets: list[_Get] = []

        def begin() -> None:
            for rows in requests:
                gets.append(_Get(window, rows, out, self._pool))

        with no_way_back() as aside:  # MPI writes to their memory
            with self.world.watch(what):
                aside(begin)
            aside(meanwhile)
            with self.world.watch(what):
                for get in gets:
                    aside(get.finish)
