"""What the two transports of far rows have in common; see ``rows/rma.py`` and ``rows/packed.py``.

A transport reads rows of hosts on other nodes into places of an array. It is told what is wanted of every host at
once, so that all of it is under way together, and what the caller can do meanwhile.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from mpi4py import MPI

from mpigraph.arrays import I64, Array

__all__ = ["RemoteRows", "Target", "Traffic", "Transport", "Watch", "waves"]

_MOST = 1 << 20  # rows of one request: bounds its memory

Watch = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Target:
    """A window as a transport sees it.

    Attributes:
        number: the window's number, the same on every rank.
        win: the MPI window.
        row: datatype of one row.
        row_bytes: bytes of one row, > 0.
    """

    number: int
    win: MPI.Win
    row: MPI.Datatype
    row_bytes: int


@dataclass(frozen=True)
class RemoteRows:
    """What is wanted of one far host.

    Attributes:
        rank: the host's rank in ``world.comm``.
        held: how many rows the host holds.
        rows: int64[n], the wanted rows, counted from the host's first one; repeats allowed.
        positions: int64[n], ascending: where each row goes.
    """

    rank: int
    held: int
    rows: I64
    positions: I64

    def piece(self, number: int) -> "RemoteRows":
        """The ``number``-th piece of bounded size."""
        cut = slice(number * _MOST, (number + 1) * _MOST)
        return RemoteRows(self.rank, self.held, self.rows[cut], self.positions[cut])


def waves(parts: list[RemoteRows]) -> list[list[RemoteRows]]:
    """Cut what is wanted so that each wave asks every host for a bounded number of rows."""
    count = max(-(-len(part.rows) // _MOST) for part in parts)
    return [[part.piece(k) for part in parts if k * _MOST < len(part.rows)] for k in range(count)]


class Traffic:
    """What one rank moved for far rows: plain counts that only grow.

    Attributes:
        messages: messages sent (requests, pieces of replies) or ``Get`` calls made.
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


class Transport(Protocol):
    """A way to read far rows. Several threads may read at once.

    Attributes:
        name: "rma" or "packed".
        traffic: what was moved so far.
    """

    name: str
    traffic: Traffic

    def read(self, target: Target, parts: list[RemoteRows], out: Array, meanwhile: Callable[[], None]) -> None:
        """Fill ``out`` (2-D, whole rows as words) from far hosts, and call ``meanwhile`` while that is under way.

        Raises:
            ClosedError: a host has freed the window.

        One-sided; the target does nothing.
        """
