"""The interface of a transport: reads rows of hosts on other nodes into places of an array, and writes them.

A transport is one class. It is told what is wanted of every host at once, so that all requests are outstanding
together, and what the caller can do meanwhile. ``rows/service.py`` lists the classes; one line there makes a new one
known to the settings, to the measurement at start and to ``bench``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import ClassVar

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, Array
from mpigraph.kernels.row_ops import gather_rows
from mpigraph.mpi.world import World
from mpigraph.rows.mutex import HostMutex
from mpigraph.rows.sources.row_source import RowSource

__all__ = ["RemoteRows", "Traffic", "Transport", "WindowHandle", "last_of_equal", "nothing", "split_requests"]

MAX_ROWS = 1 << 20  # of one request: bounds its memory


@dataclass(frozen=True)
class WindowHandle:
    """A window as a transport sees it.

    Attributes:
        number: the window's number, the same on every rank.
        win: the MPI window.
        row: datatype of one row.
        row_bytes: bytes of one row, > 0.
        mutex: the locks of the hosts, of which one is held while rows are written.
        held: how many rows this rank holds.
        like: [0, words], as rows that travel.
        source: the rows that this rank holds; None if it is no host.
        words: the same, 2-D as words (see ``kernels/row_ops.py``), if they lie in memory.
    """

    number: int
    win: MPI.Win
    row: MPI.Datatype
    row_bytes: int
    mutex: HostMutex
    held: int
    like: Array
    source: RowSource | None
    words: Array | None

    def gather(self, rows: I64, out: Array) -> None:
        """Read ``rows`` (int64[n]) that this rank holds into ``out`` ([n, words])."""
        positions = np.arange(len(rows))
        if self.words is not None:
            gather_rows(self.words, rows, positions, out)
        elif self.source is not None:
            self.source.gather(rows, out, positions)


@dataclass(frozen=True)
class RemoteRows:
    """Rows of one far host that are wanted, or are to be written.

    Attributes:
        rank: the host's rank in ``world.comm``.
        held: how many rows the host holds.
        rows: int64[n], the rows, counted from the host's first one; repeats allowed.
        positions: int64[n], ascending: where each row goes, or comes from.
    """

    rank: int
    held: int
    rows: I64
    positions: I64

    def request(self, number: int) -> "RemoteRows":
        """The ``number``-th request of bounded size."""
        cut = slice(number * MAX_ROWS, (number + 1) * MAX_ROWS)
        return RemoteRows(self.rank, self.held, self.rows[cut], self.positions[cut])


def split_requests(wanted: list[RemoteRows]) -> list[list[RemoteRows]]:
    """Cut what is wanted into lists to be read one after the other, each with a bounded request to every host."""
    count = max(-(-len(rows.rows) // MAX_ROWS) for rows in wanted)
    return [[rows.request(k) for rows in wanted if k * MAX_ROWS < len(rows.rows)] for k in range(count)]


def last_of_equal(rows: RemoteRows) -> tuple[I64, I64]:
    """The rows to write, distinct and ascending, and for each the position of what is written there last."""
    order = np.argsort(rows.rows, kind="stable")
    order = order[np.flatnonzero(np.diff(rows.rows[order], append=-1))]
    return rows.rows[order], rows.positions[order]


def nothing() -> None:
    """What to do meanwhile when there is nothing left to do."""


class Traffic:
    """What one rank moved for far rows: plain counts that only grow.

    Attributes:
        messages: messages sent (requests, chunks of replies) or ``Get`` calls made.
        bytes_sent: their bytes.
        bytes_received: bytes that came in.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self.messages = self.bytes_sent = self.bytes_received = 0

    def sent(self, nbytes: int) -> None:
        """Count one message that leaves."""
        with self._lock:
            self.messages += 1
            self.bytes_sent += nbytes

    def received(self, nbytes: int) -> None:
        """Count bytes that arrived."""
        with self._lock:
            self.bytes_received += nbytes


class Transport:
    """A way to read far rows. Several threads may read at once; :meth:`progress` may run in yet another.

    Attributes:
        name: how settings and figures call it, a word of its own.
        how: the same for readers: "random far rows" are read ``how``.
        one_sided: whether it needs windows that reach other nodes.
        traffic: what was moved so far.

    All ranks construct, and later close, their transports in the same order, so both may make collective calls.
    """

    name: ClassVar[str]
    how: ClassVar[str]
    one_sided: ClassVar[bool] = True

    def __init__(self, world: World) -> None:
        """Get ready in a job of several nodes; a communicator from ``world.dup()`` is freed by the world."""
        self.world = world
        self.traffic = Traffic()

    def register(self, window: WindowHandle) -> None:
        """A window was made, and this rank's rows of it may be read once every rank has registered it."""

    def forget(self, window: WindowHandle) -> None:
        """This rank closes a window, whose memory may be gone when this returns."""

    def read(self, window: WindowHandle, wanted: list[RemoteRows], out: Array, meanwhile: Callable[[], None]) -> None:
        """Fill ``out`` (2-D, whole rows as words) from far hosts, and call ``meanwhile`` once while that goes on.

        One-sided for the caller: no other rank has to make a call, whatever a transport's :meth:`progress` does there.

        Raises:
            ClosedError: a host has closed the window.
        """
        raise NotImplementedError

    def write(self, window: WindowHandle, leaving: list[RemoteRows], values: Array) -> None:
        """Write rows of far hosts from ``values`` (2-D, whole rows as words); the last of equal rows wins.

        Each host's lock is held while its rows are written. Of the transports that work in a job the first one writes.

        One-sided, as :meth:`read` is; complete at the hosts when the call returns.

        Raises:
            ClosedError: a host has closed the window.
        """
        raise NotImplementedError

    def progress(self) -> bool:
        """Advance what other ranks have asked of this one, without waiting; return whether anything moved.

        Called again and again on every host: in a server's loop, else by the progress thread.
        """
        return False

    @property
    def outstanding(self) -> bool:
        """Whether anything that other ranks have asked of this one is not complete: :meth:`progress` must come soon."""
        return False

    def close(self) -> None:
        """End what is outstanding. Every read of every rank has returned."""
