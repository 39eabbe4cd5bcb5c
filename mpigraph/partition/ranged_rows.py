"""Entries of a matrix that come in any order, from many ranks, and become rows a range of rows at a time."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array
from mpigraph.kernels.csr import count_keys, place_values
from mpigraph.partition.spill import Scratch

__all__ = ["RangedRows", "Rows", "sorted_by_row"]

_RANGES = 64


class Rows(NamedTuple):
    """Consecutive rows of a matrix.

    begin, end: which.  indptr: int64[end - begin + 1].  columns: [m] each, of their entries, row after row.
    """

    begin: int
    end: int
    indptr: I64
    columns: list[Array]


class RangedRows:
    """Entries of a matrix, waiting in a :class:`.Spill` until all have come.

    Args:
        scratch: for what does not fit into memory.
        num_rows: of the matrix.
        columns: of an entry: its row, and what it holds.
        dtype: of an entry.
    """

    def __init__(self, scratch: Scratch, num_rows: int, columns: int, dtype: npt.DTypeLike) -> None:
        self._num_rows = num_rows
        self._step = max(1, -(-num_rows // _RANGES))
        self._entries = scratch.spill(-(-num_rows // self._step), columns, dtype)

    @property
    def num_entries(self) -> int:
        """How many have come."""
        return int(self._entries.counts.sum())

    def add(self, entries: Array) -> None:
        """Add entries, [n, columns], of which the first column is the row."""
        self._entries.add(entries[:, 0] // self._step, entries)

    def take(self) -> Iterator[Rows]:
        """Yield all rows, in order; the entries of one keep the order in which they came. Once."""
        for number in range(len(self._entries.counts)):
            begin = number * self._step
            end = min(begin + self._step, self._num_rows)
            yield Rows(begin, end, *sorted_by_row(self._entries.take(number), begin, end - begin))
        self._entries.close()


def sorted_by_row(entries: Array, first: int, num_rows: int) -> tuple[I64, list[Array]]:
    """Return entries by row (a counting sort, stable).

    Args:
        entries: int[m, 1 + columns]: the row of each, and what it holds.
        first: the first row.
        num_rows: number of rows from there on.

    Returns:
        indptr int64[num_rows + 1], and each column, [m].
    """
    keys = entries[:, 0].astype(np.int64) - first
    indptr = np.zeros(num_rows + 1, np.int64)
    count_keys(keys, 1, indptr)
    indptr = np.cumsum(indptr)
    columns = []
    for column in entries.T[1:]:
        placed = np.empty(len(keys), entries.dtype)
        place_values(keys, np.ascontiguousarray(column), indptr[:-1].copy(), placed)
        columns.append(placed)
    return indptr, columns
