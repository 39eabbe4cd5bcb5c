"""The interface of a source of rows, and the source that every job has: memory.

A source holds the rows of one host for every rank of the host's node. A *free* source is memory: its rows are read by
plain loads. Reading any other source costs something, so its rows are planned ahead and cached like those of other
nodes. A host answers remote reads from the same source.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.errors import InvalidArgumentError
from mpigraph.kernels.row_ops import as_words, gather_rows

NOT_MEMORY = "these rows do not lie in memory: they can be read by their ids, and not be written"


class Ticket:
    """Rows that a source has begun to read."""

    __slots__ = ("_out", "_positions", "_rows", "_source")

    def __init__(self, source: "RowSource", rows: I64, out: Array, positions: I64) -> None:
        """Take the arguments of :meth:`RowSource.read`, which is not called before :meth:`finish`."""
        self._source = source
        self._rows = rows
        self._out = out
        self._positions = positions

    @property
    def done(self) -> bool:
        """True if :meth:`finish` need not wait."""
        return True

    def finish(self) -> None:
        """Wait until the rows are in their places. Call it once."""
        self._source.read(self._rows, self._out, self._positions)


class RowSource(ABC):
    """The rows of one host, counted from its first one. Several threads may read at once.

    Attributes:
        free: whether rows are read by plain loads from :meth:`memory`.
    """

    __slots__ = ()
    free: ClassVar[bool] = False

    def memory(self) -> Array:
        """Return the rows, [n, *row_shape], of a free source.

        Raises:
            InvalidArgumentError: the source is not free.
        """
        raise InvalidArgumentError(NOT_MEMORY)

    @abstractmethod
    def read(self, rows: I64, out: Array, positions: I64) -> None:
        """Read rows: ``out[positions[i]] = row rows[i]``.

        Args:
            rows: int64[n], ascending, each once.
            out: [m, words], rows as words (``kernels/row_ops.py``).
            positions: int64[n].
        """

    def read_ahead(self, rows: I64, out: Array, positions: I64) -> Ticket:
        """Begin to read as :meth:`read` does. A ticket that is dropped costs no more; ``out`` may be written to."""
        return Ticket(self, rows, out, positions)

    def gather(self, rows: I64, out: Array, positions: I64) -> None:
        """Read rows as :meth:`read` does, in any order, with repeats."""
        if not len(rows):
            return
        distinct, first, which = np.unique(rows, return_index=True, return_inverse=True)
        self.read(distinct, out, positions[first])
        again = np.ones(len(rows), np.bool_)
        again[first] = False
        if len(distinct) < len(rows):
            gather_rows(out, positions[first[which[again]]], positions[again], out)


class Memory(RowSource):
    """Rows in memory: that of a node's hosts, shared by its ranks, or that of this process."""

    __slots__ = ("_rows", "_words")
    free = True

    def __init__(self, rows: Array, words: Array | None = None) -> None:
        """Hold ``rows``, [n, *row_shape]; ``words`` are the same as words, if they are known."""
        self._rows = rows
        self._words = as_words(rows) if words is None else words

    def memory(self) -> Array:
        """Return the rows, writable where the memory is."""
        return self._rows

    def read(self, rows: I64, out: Array, positions: I64) -> None:
        """Copy rows."""
        gather_rows(self._words, rows, positions, out.view(self._words.dtype))
