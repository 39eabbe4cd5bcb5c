"""Rows by Get, beside those that their host packs: equal rows, and several threads."""

import gc
import weakref
from collections.abc import Callable, Collection
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt
from layouts import Job, Layout, own_on_layouts
from mpi4py import MPI
from worlds import HELD, filled_window, meet, row_values, rows_of

from mpigraph.rows.rma import RmaTransport
from mpigraph.rows.transport import RemoteRows


class BrokenWin:
    """A window whose operations fail at some ranks."""

    def __init__(self, win: MPI.Win, no_get: Collection[int] = (), no_flush: Collection[int] = ()) -> None:
        self._win, self._no_get, self._no_flush = win, no_get, no_flush
        self.memory: dict[int, weakref.ref[npt.NDArray[np.uint8]]] = {}
        self.flushed: list[int] = []

    def Get(self, origin: list[Any], rank: int, **where: object) -> None:
        self.memory[rank] = weakref.ref(origin[0].base)
        if rank in self._no_get:
            raise MPI.Exception(MPI.ERR_RANK)
        self._win.Get(origin, rank, **where)

    def Flush(self, rank: int) -> None:
        assert self.memory[rank]() is not None
        if rank in self._no_flush:
            raise MPI.Exception(MPI.ERR_OTHER)
        self._win.Flush(rank)
        self.flushed.append(rank)


@own_on_layouts([Layout(4, 0, 1)])
def test_memory_stays_until_mpi_does_not_write_to_it(layout: Job) -> None:
    """An error of MPI at one host, or of the caller's own work, is raised when the other reads are over."""
    with rows_of(layout, transport="rma") as service:
        world = service.world
        window = filled_window(service, (3,), "i8")
        others = [rank for rank in range(4) if rank != world.rank]
        remote = [RemoteRows(rank, np.arange(9), 3 * np.arange(9) + k) for k, rank in enumerate(others)]
        way = next(way for way in service.transports if isinstance(way, RmaTransport))

        def read(win: BrokenWin, work: Callable[[], None] = lambda: None) -> list[int]:
            out, broken = np.zeros((27, 3), np.int64), copy(window)
            broken.win = win
            try:
                way.read(broken, remote, out, work)
            except (MPI.Exception, ZeroDivisionError):
                pass
            else:
                raise AssertionError("no error")
            gc.collect()
            flushed = win.flushed
            for k, rank in enumerate(others):
                if rank in flushed:
                    assert np.array_equal(out[k::3], row_values(np.arange(9) + HELD * rank, (3,), "i8"))
            return [rank for rank, memory in win.memory.items() if memory() is not None]

        def fail() -> None:
            raise ZeroDivisionError

        at = BrokenWin(window.win, no_get=others[1:2])
        assert (read(at), at.flushed) == (others[1:2], others[:1])
        at = BrokenWin(window.win, no_flush=others[:1])
        assert (read(at), at.flushed) == (others[:1], others[1:])
        at = BrokenWin(window.win)
        assert (read(at, fail), at.flushed) == ([], others)
        meet(world, service.hosts.progress)
        window.close()
