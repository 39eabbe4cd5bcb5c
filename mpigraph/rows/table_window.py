"""Several tables of numbers in one window, so that a graph of many relations does not need many windows.

A window is costly: every rank takes part in making it, and an MPI has a limited number of them (MPICH about 2000). Each
host holds its rows of the first table, then those of the second, and so on.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.rows.service import RowService
from mpigraph.rows.window import RowWindow

__all__ = ["TableWindow"]


class TableWindow:
    """Tables that are cut over the hosts, each in its own way."""

    @collective("world.comm")
    def __init__(self, service: RowService, tables: Sequence[I64], dtype: npt.DTypeLike) -> None:
        """Allocate zeros.

        Args:
            service: the job's transports and windows.
            tables: for each table int64[H + 1]; host h holds its rows ``[offsets[h], offsets[h + 1])``.
            dtype: dtype of all rows.
        """
        self._tables = list(tables)
        hosts = len(service.world.hosts)
        sizes = np.array([np.diff(offsets) for offsets in tables], np.int64).reshape(len(tables), hosts)
        self._starts = np.concatenate([np.zeros((1, hosts), np.int64), np.cumsum(sizes, axis=0)])
        self._window = RowWindow(service, np.append(0, np.cumsum(sizes.sum(axis=0))), (), dtype)

    def segment(self, table: int, host: int) -> Array:
        """A table's rows on near host ``host``, a writable view of the window's memory."""
        begin, end = self._starts[table : table + 2, host]
        return self._window.memory(host)[begin:end]

    def gather(self, table: int, ids: I64) -> Array:
        """Read rows of a table in the order of ``ids`` (int64[n], all valid). One-sided."""
        offsets = self._tables[table]
        host = np.searchsorted(offsets, ids, side="right") - 1
        begins = self._window.offsets[:-1] + self._starts[table] - offsets[:-1]
        return self._window.gather(ids + begins[host])

    def sync(self) -> None:
        """Make plain stores and loads of this process ordered with the other processes'."""
        self._window.sync()

    @collective("world.comm")
    def close(self) -> None:
        """Free the memory; a second call does nothing."""
        self._window.close()
