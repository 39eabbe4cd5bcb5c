"""Far rows by one-sided ``Get``: one for each host, whose target datatype lists the wanted rows as runs.

Nothing runs at the owner. Fast where the fabric reads memory by itself; over TCP the owner's MPI library walks the
list row by row, and ``rows/packed.py`` is faster.
"""

from collections.abc import Callable
from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, Array
from mpigraph.kernels.row_ops import find_runs, gather_rows
from mpigraph.rows.transport import RemoteRows, Target, Traffic, Watch, waves

__all__ = ["Rma", "listed_rows"]


@contextmanager
def listed_rows(row: MPI.Datatype, starts: I64, lengths: I64):  # type: ignore[no-untyped-def]
    """A datatype that lists runs of rows, freed behind the ``with`` block."""
    listed = row.Create_indexed(lengths.tolist(), starts.tolist()).Commit()
    try:
        yield listed
    finally:
        listed.Free()


def _nothing() -> None:
    pass


class _Get:
    """One ``Get`` under way, begun by construction: the distinct rows in ascending order."""

    def __init__(self, target: Target, part: RemoteRows, out: Array) -> None:
        self._win, self._part, self._out = target.win, part, out
        self._order = np.argsort(part.rows, kind="stable")
        starts, lengths, self._place = find_runs(part.rows[self._order])
        count = int(lengths.sum())
        self._arrived = np.empty((count, out.shape[1]), out.dtype)
        with listed_rows(target.row, starts, lengths) as listed:  # MPI keeps what it still needs
            self._win.Get([self._arrived.view(np.uint8), count, target.row], part.rank, target=[0, 1, listed])

    def finish(self) -> int:
        """Wait, put the rows into their places, and say how many bytes came."""
        self._win.Flush(self._part.rank)
        gather_rows(self._arrived, self._place, self._part.positions[self._order], self._out)
        return self._arrived.nbytes


class Rma:
    """Reads far rows with ``Get`` and ``Flush``.

    Attributes:
        name: "rma".
        traffic: what was moved so far.
    """

    name = "rma"

    def __init__(self, watch: Watch) -> None:
        """``watch(what)`` puts a deadline on a wait."""
        self._watch = watch
        self.traffic = Traffic()

    def read(self, target: Target, parts: list[RemoteRows], out: Array, meanwhile: Callable[[], None]) -> None:
        """See :class:`~mpigraph.rows.transport.Transport`. One-sided; the target does nothing."""
        for wave in waves(parts):
            what = f"one-sided reads of rows of rank(s) {', '.join(str(part.rank) for part in wave)}"
            with self._watch(what):
                gets = [_Get(target, part, out) for part in wave]
            meanwhile()
            with self._watch(what):
                for get in gets:
                    self.traffic.sent(0)
                    self.traffic.received(get.finish())
            meanwhile = _nothing
