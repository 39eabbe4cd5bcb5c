"""In-edges as plain arrays, and the windows that they lie in."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.rows.service import RowService
from mpigraph.rows.window import RowWindow


@dataclass(frozen=True)
class Adjacency:
    """One relation's in-edges on one local host, as plain arrays.

    Attributes:
        indptr: int64[n + 1], from 0.
        indices: int32 or int64 [nnz], global source ids, rising inside a row.
        first_node: global id of the first destination.
        first_edge: global id of the first edge.
        rows: int32 or int64[n], the destinations that have edges, ascending, counted from the first; None: each
            destination has a row.
    """

    indptr: I64
    indices: Array
    first_node: int
    first_edge: int
    rows: Array | None = None

    def rows_of(self, ids: I64) -> tuple[I64, Mask]:
        """Return int64[n], the row of each destination (int64[n], global ids), and whether it has one, bool[n].

        Of an adjacency with :attr:`rows`.
        """
        assert self.rows is not None
        local = ids - self.first_node
        row = np.searchsorted(self.rows, local)
        known = row < len(self.rows)
        known[known] = self.rows[row[known]] == local[known]
        return row, known

    def into(self, begin: int, end: int) -> slice:
        """Return the edges into the destinations ``[begin, end)``, counted from the first."""
        if self.rows is not None:
            begin, end = np.searchsorted(self.rows, (begin, end)).tolist()
        return slice(int(self.indptr[begin]), int(self.indptr[end]))

    def destinations(self) -> I64:
        """Return int64[nnz], the global destination of each edge."""
        rows = np.arange(len(self.indptr) - 1) if self.rows is None else self.rows.astype(np.int64)
        return self.first_node + np.repeat(rows, np.diff(self.indptr))


class TableWindow:
    """Tables that are divided among the hosts, each in its own way."""

    @collective("world.comm")
    def __init__(self, service: RowService, tables: Sequence[I64] | I64, dtype: npt.DTypeLike) -> None:
        """Allocate zeros; host h holds the rows ``[offsets[h], offsets[h + 1])`` of each table's offsets."""
        hosts = len(service.world.hosts)
        self._tables = np.array(tables, np.int64).reshape(len(tables), hosts + 1)
        sizes = np.diff(self._tables, axis=1)
        self._starts = np.concatenate([np.zeros((1, hosts), np.int64), np.cumsum(sizes, axis=0)])
        self._window = RowWindow(service, np.append(0, np.cumsum(sizes.sum(axis=0))), (), dtype)

    def segment(self, table: int, host: int) -> Array:
        """Return a table's rows on a local host, a writable view of the window's memory."""
        begin, end = self._starts[table : table + 2, host]
        return self._window.memory(host)[begin:end]

    @property
    def offsets(self) -> I64:
        """int64[H + 1]; host h holds the rows ``[offsets[h], offsets[h + 1])`` of all tables."""
        return self._window.offsets

    def begins(self, host: int) -> I64:
        """Return int64[tables + 1], where the rows of each table begin among those of a host."""
        return np.ascontiguousarray(self._starts[:, host])

    def numbers(self, table: int, ids: I64) -> I64:
        """Return the numbers of a table's rows (int64[n], all valid) among those of all tables and hosts."""
        offsets = self._tables[table]
        host = np.searchsorted(offsets, ids, side="right") - 1
        begins = self.offsets[:-1] + self._starts[table] - offsets[:-1]
        numbers: I64 = ids + begins[host]
        return numbers

    def gather(self, table: int, ids: I64) -> Array:
        """Read rows of a table in the order of ``ids`` (int64[n], all valid). One-sided."""
        return self._window.gather(self.numbers(table, ids))

    def memory(self, host: int) -> Array:
        """Return all tables' rows on a local host, one after another."""
        return self._window.memory(host)

    def sync(self) -> None:
        """Order the plain stores and loads of this process with those of the others."""
        self._window.sync()

    def retire(self) -> None:
        """See :meth:`.RowWindow.retire`."""
        self._window.retire()

    @collective("world.comm")
    def close(self) -> None:
        """Free the memory; a second call does nothing."""
        self._window.close()
