"""Far rows by one-sided ``Get``: one for each host, whose target datatype lists the wanted rows as runs.

Nothing runs at the host. Fast where the fabric reads memory by itself; over TCP the host's MPI library walks the
list row by row, and ``rows/packed.py`` is faster.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, Array
from mpigraph.kernels.row_ops import find_runs, gather_rows
from mpigraph.rows.transport import RemoteRows, Transport, WindowHandle, nothing, split_requests

__all__ = ["RmaTransport", "runs_type"]


@contextmanager
def runs_type(row: MPI.Datatype, starts: I64, lengths: I64) -> Iterator[MPI.Datatype]:
    """A datatype that lists runs of rows, freed after the ``with`` block; MPI keeps what it still needs."""
    runs = row.Create_indexed(lengths.tolist(), starts.tolist()).Commit()
    try:
        yield runs
    finally:
        runs.Free()


class _Get:
    """One outstanding ``Get``, begun by construction: the distinct rows in ascending order."""

    def __init__(self, window: WindowHandle, wanted: RemoteRows, out: Array) -> None:
        self._win = window.win
        self._wanted = wanted
        self._out = out
        self._order = np.argsort(wanted.rows, kind="stable")
        starts, lengths, self._place = find_runs(wanted.rows[self._order])
        count = int(lengths.sum())
        self._arrived = np.empty((count, out.shape[1]), out.dtype)
        with runs_type(window.row, starts, lengths) as runs:
            self._win.Get([self._arrived.view(np.uint8), count, window.row], wanted.rank, target=[0, 1, runs])

    def finish(self) -> int:
        """Wait, put the rows into their places, and return how many bytes came."""
        self._win.Flush(self._wanted.rank)
        gather_rows(self._arrived, self._place, self._wanted.positions[self._order], self._out)
        return self._arrived.nbytes


class RmaTransport(Transport):
    """Reads far rows with ``Get`` and ``Flush``."""

    name = "rma"
    how = "by one-sided Get"

    def read(self, window: WindowHandle, wanted: list[RemoteRows], out: Array, meanwhile: Callable[[], None]) -> None:
        """See :class:`~mpigraph.rows.transport.Transport`. One-sided."""
        for requests in split_requests(wanted):
            what = f"one-sided reads of rows of rank(s) {', '.join(str(rows.rank) for rows in requests)}"
            with self.world.watch(what):
                gets = [_Get(window, rows, out) for rows in requests]
            meanwhile()
            with self.world.watch(what):
                for get in gets:
                    self.traffic.sent(0)
                    self.traffic.received(get.finish())
            meanwhile = nothing
