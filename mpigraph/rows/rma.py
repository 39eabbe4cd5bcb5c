"""Remote rows by one-sided ``Get``: one for each host, whose target datatype lists the rows as runs.

The host runs no code. This is fast where the fabric reads memory by itself; over TCP the host's MPI library walks the
list row by row, and ``rows/packed.py`` is faster.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, Array
from mpigraph.kernels.row_ops import find_runs, gather_rows
from mpigraph.mpi.agree import no_way_back
from mpigraph.mpi.messages import answered, received, sent
from mpigraph.mpi.world import World
from mpigraph.rows.transport import RemoteRows, Transport, WindowHandle, nothing, split_requests
from mpigraph.trace import clock


@contextmanager
def _runs_type(row: MPI.Datatype, starts: I64, lengths: I64) -> Iterator[MPI.Datatype]:
    """Make a datatype that lists runs of rows, freed after the ``with`` block; MPI may still use it."""
    runs = row.Create_indexed(lengths.tolist(), starts.tolist()).Commit()
    try:
        yield runs
    finally:
        runs.Free()


class _Get:
    """One outstanding ``Get``, begun by construction: the distinct rows in ascending order.

    Its memory is kept until a flush has succeeded, whatever fails before.
    """

    _begun: ClassVar[set["_Get"]] = set()

    def __init__(self, window: WindowHandle, remote: RemoteRows, out: Array) -> None:
        self._win = window.win
        self.remote = remote
        self._out = out
        self._order = np.argsort(remote.rows, kind="stable")
        starts, lengths, self._place = find_runs(remote.rows[self._order])
        count = int(lengths.sum())
        self._arrived = np.empty((count, out.shape[1]), out.dtype)
        with _runs_type(window.row, starts, lengths) as runs:
            self._begun.add(self)
            self._win.Get(
                [self._arrived.view(np.uint8), count, window.row], remote.rank, target=[window.begin, 1, runs]
            )

    def finish(self) -> int:
        """Wait, put the rows into their places, and return their bytes."""
        self._win.Flush(self.remote.rank)
        self._begun.discard(self)
        gather_rows(self._arrived, self._place, self.remote.positions[self._order], self._out)
        return self._arrived.nbytes


class RmaTransport(Transport):
    """Reads remote rows with ``Get`` and ``Flush``."""

    name = "rma"
    how = "by one-sided Get"

    def __init__(self, world: World, wake: Callable[[Sequence[int]], None]) -> None:
        """Read rows of other nodes.

        Args:
            world: the job.
            wake: makes hosts, given by rank, look at their messages often for a while: some networks move a host's rows
                only while it looks.
        """
        super().__init__(world)
        self._wake = wake

    def read(self, window: WindowHandle, remote: list[RemoteRows], out: Array, meanwhile: Callable[[], None]) -> None:
        """See :class:`~mpigraph.rows.transport.Transport`. One-sided."""
        for requests in split_requests(remote):
            self._read(window, requests, out, meanwhile)
            meanwhile = nothing

    def _read(
        self, window: WindowHandle, requests: list[RemoteRows], out: Array, meanwhile: Callable[[], None]
    ) -> None:
        self._wake([rows.rank for rows in requests])
        what = f"one-sided reads of rows of rank(s) {', '.join(str(rows.rank) for rows in requests)}"
        gets: list[_Get] = []

        def begin() -> None:
            for rows in requests:
                gets.append(_Get(window, rows, out))

        with no_way_back(self.world.comm) as aside:  # MPI writes to their memory
            with self.world.watch(what):
                aside(begin)
            aside(meanwhile)
            with self.world.watch(what):
                for get in gets:
                    aside(partial(self._finish, get))

    def _finish(self, get: _Get) -> None:
        begin = clock()  # what has come before made no thread wait
        nbytes = get.finish()
        sent(get.remote.rank, 0)
        received(get.remote.rank, nbytes)
        answered(get.remote.rank, begin)
