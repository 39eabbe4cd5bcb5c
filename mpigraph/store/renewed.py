"""What is derived from rows, and made anew when they are written: beside the old, which a thread may be reading.

Whoever reads holds an object that gives access to one making, and reads that from its first look to its last. The
memory of an old one is freed by a later one, once no rank holds its object any more.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64
from mpigraph.errors import MPIGraphError
from mpigraph.mpi.agree import together
from mpigraph.mpi.alltoall import sum_over_ranks
from mpigraph.rows.service import RowService
from mpigraph.rows.window import RowWindow

__all__ = ["Renewed"]

Tables = TypeVar("Tables")
_Windows = tuple[RowWindow, ...]


class Renewed(Generic[Tables]):
    """Windows of tables, of which each host makes those of its own rows, and one set of which counts.

    Attributes:
        tables: gives access to those that count now; None before the first making.

    Collective on ``world.comm``: :meth:`make` and :meth:`close`.
    """

    def __init__(
        self, service: RowService, columns: Sequence[tuple[I64, npt.DTypeLike]], access: Callable[..., Tables]
    ) -> None:
        """Make nothing yet.

        Args:
            service: allocates the windows.
            columns: of each window the offsets, int64[H + 1], and the dtype.
            access: called with the windows, gives access to them.
        """
        self.tables: Tables | None = None
        self._service = service
        self._columns = columns
        self._access = access
        self._windows: _Windows = ()
        self._outdated: list[tuple[weakref.ref[Any], _Windows]] = []

    def make(self, doing: str, fill: Callable[[Tables, int], None]) -> None:
        """Make the tables, or make them anew beside the old ones, and switch to them.

        Args:
            doing: what to say of it where it fails.
            fill: makes those of one host; called on hosts alone.

        Raises:
            SharedMemoryError: a node's shared memory cannot hold them, beside the old ones; on every rank.
            MPIGraphError: what ``fill`` raises, on every rank.

        The old tables stay if it fails. Collective on ``world.comm``.
        """
        world = self._service.world
        windows: list[RowWindow] = []
        try:
            for offsets, dtype in self._columns:
                windows.append(RowWindow(self._service, offsets, (), dtype))
            tables = self._access(*windows)
            with together(world.comm, doing):
                if world.is_host:
                    fill(tables, world.host_index)
        except MPIGraphError:  # on every rank
            _close(windows)
            raise
        for window in windows:
            window.sync()
        with world.watch(doing):
            world.comm.Barrier()
        for window in windows:
            window.sync()
        if self.tables is not None:
            self._outdated.append((weakref.ref(self.tables), self._windows))
        self.tables, self._windows = tables, tuple(windows)
        self._free_outdated(doing)

    def _free_outdated(self, doing: str) -> None:
        """Free what no rank reads any more. Collective on ``world.comm``."""
        world = self._service.world
        mine = np.array([tables() is not None for tables, _ in self._outdated], np.int64)
        with world.watch(doing):
            used = sum_over_ranks(world.comm, mine)
        for (_, windows), users in zip(self._outdated, used, strict=True):
            _close(() if users else windows)
        self._outdated = [one for one, users in zip(self._outdated, used, strict=True) if users]

    def close(self) -> None:
        """Free all memory. Collective on ``world.comm``."""
        for windows in (*(windows for _, windows in self._outdated), self._windows):
            _close(windows)
        self._windows, self._outdated = (), []


def _close(windows: Sequence[RowWindow]) -> None:
    for window in windows:
        window.close()
