"""Rows that live on the hosts: plain loads where memory is shared, one-sided ``Get``/``Put`` where it is not.

A :class:`RowWindow` is one array of rows, cut over the hosts in rank order. One ``Lock_all`` at birth, ``Unlock_all``
at close; between them only ``Get``, ``Put`` and ``Flush`` (MPI 4.1, section 12.5: passive target). A read climbs a
ladder and stops at the first rung that reaches: hosts on my node are read with plain loads, the rest by a transport
(``rows/rma.py`` or ``rows/packed.py``, chosen in ``rows/selection.py``), which works while the near rows are loaded.

Two ways to allocate, same behaviour above this file:

* *allocate*: ``Win.Allocate`` over all ranks; neighbours on the node are found with ``Shared_query``, which MPI allows
  on such windows since 4.1 (MPICH does). A ``Get`` between processes of one machine then needs no help of the target.
* *create*: ``Win.Allocate_shared`` on the node, and ``Win.Create`` over that memory (any MPI-3), which is left out in a
  job on one node, where every row is loaded.

:func:`window_kind` tries the first on a small window at start.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from mpigraph.arrays import I32, I64, Array
from mpigraph.errors import ClosedError, InvalidArgumentError
from mpigraph.kernels.row_ops import as_words, find_runs, gather_rows, order_by_range, scatter_rows
from mpigraph.mpi.compat import advise_large_pages, as_array, library_version
from mpigraph.mpi.world import World
from mpigraph.rows.rma import listed_rows
from mpigraph.rows.shm_check import check_shared_memory
from mpigraph.rows.transport import RemoteRows, Target, Transport

__all__ = ["RowWindow", "shared_query_works", "window_kind"]

_ROWS_PER_PUT = 1 << 20


def shared_query_works(win: MPI.Win, ranks: Iterable[int], nbytes: int) -> bool:
    """Whether an allocated window says where the memory of ranks on this node is; ``nbytes`` is what each allocated."""
    try:
        return all(len(win.Shared_query(rank)[0]) == nbytes for rank in ranks)
    except MPI.Exception:  # Open MPI 5 and MPICH 4.0 do not have it
        return False


def window_kind(world: World) -> str:
    """Return "allocate" if ``Shared_query`` works on allocated windows here, else "create".

    Raises:
        InvalidArgumentError: ``MPIGRAPH_WINDOW`` asks for what this MPI cannot do; on every rank.

    Collective on ``world.comm``.
    """
    wanted = world.config.window
    if wanted == "create":
        return wanted
    win = MPI.Win.Allocate(8, 1, comm=world.comm)
    answer = np.array([shared_query_works(win, world.hosts[world.near].tolist(), 8)], np.int64)
    world.comm.Allreduce(MPI.IN_PLACE, answer, op=MPI.MIN)
    win.Free()
    if not answer[0] and wanted == "allocate":
        error = InvalidArgumentError(f"window 'allocate' does not work with {library_version()}: use auto or create")
        error.everywhere = True
        raise error
    return "allocate" if answer[0] else "create"


class RowWindow:
    """An array of rows cut over the hosts, read and written by global row.

    Attributes:
        offsets: int64[H + 1]; host h holds the rows ``[offsets[h], offsets[h + 1])``.
        row_shape: shape of one row.
        dtype: dtype of the elements.

    Collective on ``world.comm``: construction and :meth:`close`.
    """

    def __init__(self, world: World, offsets: I64, row_shape: Sequence[int], dtype: npt.DTypeLike, kind: str) -> None:
        """Allocate the rows, zeroed. ``kind`` is what :func:`window_kind` said.

        Raises:
            SharedMemoryError: a node's shared memory cannot hold its rows; on every rank.
        """
        self.world = world
        self.offsets = np.ascontiguousarray(offsets, np.int64)
        self.row_shape = tuple(row_shape)
        self.dtype = np.dtype(dtype)
        self.row_bytes = self.dtype.itemsize * int(np.prod(self.row_shape, dtype=np.int64))
        self._shared = MPI.WIN_NULL
        with world.watch(f"allocating a window of {int(offsets[-1])} rows"):
            check_shared_memory(world, np.diff(self.offsets) * self.row_bytes, f"{int(offsets[-1])} rows")
            self._allocate(kind)
            self._row = MPI.BYTE.Create_contiguous(self.row_bytes).Commit()
            self._target = Target(world.number_window(), self._win, self._row, self.row_bytes)
            self.segments = {int(h): self._near_segment(int(h), kind) for h in np.flatnonzero(world.near)}
            if world.is_host:
                mine = self.segment(world.host_index).reshape(-1).view(np.uint8)
                advise_large_pages(mine)
                mine[:] = 0
            self._win.Lock_all(MPI.MODE_NOCHECK)
            self._win.Sync()
            self._words = {h: as_words(rows) for h, rows in self.segments.items()}
            if world.packed and world.is_host:
                world.packed.owner.enter(self._target.number, self._words[world.host_index])
            world.comm.Barrier()

    def _allocate(self, kind: str) -> None:
        world = self.world
        h = world.host_index
        nbytes = int(self.offsets[h + 1] - self.offsets[h]) * self.row_bytes if world.is_host else 0
        if kind == "allocate":
            self._win = MPI.Win.Allocate(nbytes, 1, comm=world.comm)
            return
        self._shared = MPI.Win.Allocate_shared(nbytes, 1, comm=world.node)
        if world.all_near:  # every row is loaded, and Open MPI 4.1 cannot make the other window without a network
            self._win = self._shared
            return
        mine = self._shared.Shared_query(world.node.rank)[0] if nbytes else None
        self._win = MPI.Win.Create(mine, 1, comm=world.comm)

    def _near_segment(self, host: int, kind: str) -> Array:
        """The rows of a host on this node, mapped."""
        count = int(self.offsets[host + 1] - self.offsets[host])
        if count * self.row_bytes == 0:
            return np.empty((count, *self.row_shape), self.dtype)
        world, rank = self.world, int(self.world.hosts[host])
        if kind == "allocate" and rank == world.rank:
            memory = self._win.tomemory()
        elif kind == "allocate":
            memory = self._win.Shared_query(rank)[0]
        else:
            node_rank = MPI.Group.Translate_ranks(world.comm.group, [rank], world.node.group)[0]
            memory = self._shared.Shared_query(node_rank)[0]
        flat = as_array(memory, self.dtype)[: count * self.row_bytes // self.dtype.itemsize]
        return flat.reshape(count, *self.row_shape)

    def segment(self, host: int) -> Array:
        """The rows of near host ``host``, a writable view of the window's memory."""
        if not self._win:
            raise ClosedError("this window was closed")
        return self.segments[host]

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def gather(self, ids: I64, out: Array | None = None, transport: Transport | None = None) -> Array:
        """Read rows in the order of ``ids``. One-sided; the target does nothing.

        Args:
            ids: int64[n], each in ``[0, len(self))`` (checked by the caller).
            out: [n, *row_shape] to fill, C-contiguous; a new array if None.
            transport: reads the far rows (``world.rma`` or ``world.packed``); ``world.transport`` if None.

        Raises:
            ClosedError: the window was closed, here or at a host.
        """
        if not self._win:
            raise ClosedError("this window was closed")
        if out is None:
            out = np.empty((len(ids), *self.row_shape), self.dtype)
        if out.size == 0:
            return out
        words, by_host = as_words(out), self._by_host(ids)

        def load_near() -> None:
            for host, positions in by_host:
                if host in self.segments:
                    table = self._words[host]
                    gather_rows(table, ids[positions] - self.offsets[host], positions, words.view(table.dtype))

        far = [self._far_rows(host, ids, at) for host, at in by_host if host not in self.segments]
        if far:
            (transport or self.world.transport).read(self._target, far, words, load_near)
        else:
            load_near()
        return out

    def _far_rows(self, host: int, ids: I64, positions: I64) -> RemoteRows:
        begin, end = self.offsets[host : host + 2].tolist()
        return RemoteRows(int(self.world.hosts[host]), end - begin, ids[positions] - begin, positions)

    def scatter(self, ids: I64, values: Array, hold: Callable[[int], AbstractContextManager[None]]) -> None:
        """Write ``values`` ([n, *row_shape], C-contiguous) to rows ``ids``; the last of equal rows wins.

        ``hold(host)`` is the lock to hold while a host's rows are written (see ``rows/mutex.py``).

        One-sided; complete at the target when the call returns.
        """
        if not self._win:
            raise ClosedError("this window was closed")
        if values.size == 0:
            return
        words = as_words(values)
        for host, positions in self._by_host(ids):
            rows = ids[positions] - self.offsets[host]
            with hold(host):
                if host in self.segments:
                    table = self._words[host]
                    scatter_rows(words.view(table.dtype), positions, table, rows)
                    self._win.Sync()
                else:
                    self._scatter_far(host, rows, positions, words)

    def owner(self, ids: I64) -> I32:
        """int32[n]: the host of each row."""
        return (np.searchsorted(self.offsets, ids, side="right") - 1).astype(np.int32)

    def _by_host(self, ids: I64) -> list[tuple[int, I64]]:
        """Positions of ``ids`` by host, hosts that own none left out."""
        if len(self.offsets) == 2:
            return [(0, np.arange(len(ids)))]
        order, bounds = order_by_range(ids, self.offsets)
        return [(int(h), order[bounds[h] : bounds[h + 1]]) for h in np.flatnonzero(np.diff(bounds))]

    def _scatter_far(self, host: int, rows: I64, positions: I64, values: Array) -> None:
        rank = int(self.world.hosts[host])
        order = np.argsort(rows, kind="stable")
        ends = np.flatnonzero(np.diff(rows[order], append=-1))  # the last of equal rows
        order = order[ends]
        for begin in range(0, len(order), _ROWS_PER_PUT):
            part = order[begin : begin + _ROWS_PER_PUT]
            starts, lengths, _ = find_runs(rows[part])
            leaving = np.ascontiguousarray(values[positions[part]])
            with (
                listed_rows(self._row, starts, lengths) as listed,
                self.world.watch(f"writing {len(leaving)} rows of rank {rank}"),
            ):
                self._win.Put([leaving.view(np.uint8), len(leaving), self._row], rank, target=[0, 1, listed])
                self._win.Flush(rank)

    def sync(self) -> None:
        """Make plain stores and loads of this process ordered with the other processes'."""
        self._win.Sync()

    def close(self) -> None:
        """Free the memory; a second call does nothing."""
        win, self._win = self._win, MPI.WIN_NULL
        if not win:
            return
        with self.world.watch("closing a window"):
            if self.world.packed:
                self.world.packed.owner.forget(self._target.number)
            self.segments, self._words = {}, {}
            win.Unlock_all()
            self._row.Free()
            win.Free()
            if self._shared:
                self._shared.Free()
