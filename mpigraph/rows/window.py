"""An array of rows cut over the hosts: plain loads where memory is shared, a transport where it is not.

One ``Lock_all`` at birth, ``Unlock_all`` at close; between them only ``Get``, ``Put`` and ``Flush`` (MPI 4.1, section
12.5: passive target). A rank loads and stores rows of hosts on its node; a transport reads and writes the others,
meanwhile. ``rows/service.py`` chooses the allocation and the transport.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from mpigraph.arrays import I32, I64, Array
from mpigraph.collective import collective
from mpigraph.errors import ClosedError, InvalidArgumentError
from mpigraph.kernels.row_ops import as_words, load_rows, order_by_range, scatter_rows, split_by_range
from mpigraph.mpi.compat import advise_large_pages, as_array
from mpigraph.mpi.interrupts import UNINTERRUPTED
from mpigraph.mpi.messages import Gate
from mpigraph.rows.pool import RowPool
from mpigraph.rows.service import RowService
from mpigraph.rows.shm_check import check_shared_memory
from mpigraph.rows.sources.row_source import NOT_MEMORY, Memory, RowSource, Ticket
from mpigraph.rows.transport import RemoteRows, Transport, WindowHandle

__all__ = ["RowWindow", "SourceOf"]

SourceOf = Callable[[int], RowSource]
"""Returns the source of the rows of a near host."""

_ZEROED_PER_SECOND = 1e8  # bytes, at the very least
_ALIGNMENT = 64  # bytes: no two hosts share a cache line; see _allocate


class RowWindow:
    """An array of rows cut over the hosts, read and written by global row.

    Attributes:
        offsets: int64[H + 1]; host h holds the rows ``[offsets[h], offsets[h + 1])``.
        row_shape: shape of one row.
        dtype: dtype of the elements.
        free: bool[H], the hosts whose rows this rank reads by plain loads. A source that costs time, or a transport,
            reads the others.
        handle: the window as transports see it.
    """

    @collective("world.comm")
    def __init__(
        self,
        service: RowService,
        offsets: I64,
        row_shape: Sequence[int],
        dtype: npt.DTypeLike,
        name: str = "rows",
        sources: SourceOf | None = None,
    ) -> None:
        """Allocate the rows, zeroed, or read them from sources.

        Args:
            service: the job's transports and windows.
            offsets: see the attributes.
            row_shape: see the attributes.
            dtype: see the attributes.
            name: for errors, such as "tensor 'feat'".
            sources: returns the source of a near host's rows, on every rank for the same tensor; None for new memory.

        Raises:
            SharedMemoryError: a node's shared memory cannot hold its rows; on every rank.
        """
        self.service = service
        self.world = world = service.world
        self.offsets = np.ascontiguousarray(offsets, np.int64)
        self.row_shape = tuple(row_shape)
        self.dtype = np.dtype(dtype)
        self.row_bytes = self.dtype.itemsize * int(np.prod(self.row_shape, dtype=np.int64))
        self._win = self._shared = MPI.WIN_NULL
        self._open = True
        self._gate = Gate("this window was closed")
        near = np.flatnonzero(world.near).tolist()
        self._sources: dict[int, RowSource] = {}
        self._by_messages = sources is not None
        if sources is not None:
            self._sources = {host: sources(host) for host in near}
        elif world.is_alone:
            self._sources = {0: Memory(np.zeros((len(self), *self.row_shape), self.dtype))}
        else:
            self._share(near, f"{name} ({len(self)} rows of {self.row_bytes} bytes)")
        self.free = np.zeros(len(world.hosts), np.bool_)
        self.free[near] = [self._sources[host].free for host in near]
        self._words = {host: as_words(self.memory(host)) for host in np.flatnonzero(self.free).tolist()}
        self._first = {host: int(self.offsets[host]) for host in near}
        if not world.is_alone:
            self._register()

    @collective("world.comm")
    def _share(self, near: Sequence[int], what: str) -> None:
        """Allocate zeroed rows that the ranks of a node share."""
        world = self.world
        largest = int(np.diff(self.offsets).max(initial=0)) * self.row_bytes  # bytes that a host sets to zero
        patience = 1 + largest / _ZEROED_PER_SECOND / world.config.timeout
        with world.watch(f"allocating {what}", patience):
            check_shared_memory(world, np.diff(self.offsets) * self.row_bytes, what)
            self._allocate()
            self._sources = {host: Memory(self._map(host)) for host in near}
            if world.is_host:
                memory = self.memory(world.host_index).reshape(-1).view(np.uint8)
                advise_large_pages(memory)
                memory[:] = 0
            self._win.Lock_all(MPI.MODE_NOCHECK)
            self._win.Sync()

    @collective("world.comm")
    def _register(self) -> None:
        """Tell the transports of the window."""
        world, service = self.world, self.service
        with world.watch("opening a window"):
            self._row = MPI.BYTE.Create_contiguous(self.row_bytes).Commit()
            held = self.offsets[world.host_index + 1] - self.offsets[world.host_index] if world.is_host else 0
            words = self._words.get(world.host_index)
            self.handle = WindowHandle(
                service.number_window(),
                self._win,
                self._row,
                self.row_bytes,
                service.mutex,
                int(held),
                as_words(np.empty((0, *self.row_shape), self.dtype)) if words is None else words[:0],
                self._sources.get(world.host_index),
                words,
            )
            service.register(self.handle)
            world.comm.Barrier()

    def _allocate(self) -> None:
        """Allocate whole cache lines, so that the next rank's memory begins with one.

        MPICH 4.0 with UCX begins a window at the multiple of 16 before the memory of ``Win.Create``.
        """
        world = self.world
        h = world.host_index
        nbytes = int(self.offsets[h + 1] - self.offsets[h]) * self.row_bytes if world.is_host else 0
        nbytes = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        if self.service.kind == "allocate":
            self._win = MPI.Win.Allocate(nbytes, 1, comm=world.comm)
            return
        self._shared = MPI.Win.Allocate_shared(nbytes, 1, comm=world.node)
        # Open MPI 4.1 cannot make the other window without a network
        if world.all_near or self.service.kind == "node":
            self._win = self._shared
            return
        memory = self._shared.Shared_query(world.node.rank)[0] if nbytes else None
        self._win = MPI.Win.Create(memory, 1, comm=world.comm)

    def _map(self, host: int) -> Array:
        """Return the rows of a host on this node in this process's memory."""
        count = int(self.offsets[host + 1] - self.offsets[host])
        if count * self.row_bytes == 0:
            return np.empty((count, *self.row_shape), self.dtype)
        world = self.world
        kind = self.service.kind
        rank = int(world.hosts[host])
        if kind == "allocate" and rank == world.rank:
            memory = self._win.tomemory()
        elif kind == "allocate":
            memory = self._win.Shared_query(rank)[0]
        else:
            node_rank = MPI.Group.Translate_ranks(world.comm.group, [rank], world.node.group)[0]
            memory = self._shared.Shared_query(node_rank)[0]
        flat = as_array(memory, self.dtype)[: count * self.row_bytes // self.dtype.itemsize]
        return flat.reshape(count, *self.row_shape)

    def memory(self, host: int) -> Array:
        """Return the rows of near host ``host``, writable. Write rows of a tensor through the tensor alone.

        Raises:
            ClosedError: the window was closed.
            InvalidArgumentError: the rows do not lie in memory.
        """
        if not self._open:
            raise ClosedError("this window was closed")
        return self._sources[host].memory()

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def gather(self, ids: I64, out: Array | None = None, transport: Transport | None = None) -> Array:
        """Read rows in the order of ``ids``. One-sided.

        Args:
            ids: int64[n], each in ``[0, len(self))`` (checked by the caller).
            out: [n, *row_shape] to fill, C-contiguous; a new array if None.
            transport: reads the remote rows; the service's choice if None.

        Raises:
            ClosedError: the window was closed, here or at a host.
        """

        def load_near() -> None:
            for host, positions in by_host:
                if host in self._words:
                    table = self._words[host]
                    load_rows(table, self._first[host], ids, positions, words.view(table.dtype))
                elif host in self._sources:
                    self._sources[host].gather(ids[positions] - self._first[host], words, positions)

        with UNINTERRUPTED, self._gate:
            out = np.empty((len(ids), *self.row_shape), self.dtype) if out is None else out
            if out.size:
                words = as_words(out)
                by_host = split_by_range(ids, self.offsets)
                self._read(by_host, ids, words, load_near, transport)
        return out

    def _read(
        self,
        by_host: Sequence[tuple[int, I64]],
        ids: I64,
        words: Array,
        read_near: Callable[[], None],
        reader: Transport | None = None,
    ) -> None:
        """Read the remote ones of ``ids`` at the positions of each host, and the near ones meanwhile.

        Their host packs rows that do not lie in windows; else ``reader`` or the job's transport reads them.
        """
        remote = [self._remote_rows(host, ids, at) for host, at in by_host if host not in self._sources]
        reader = reader or (self.service.by_messages if self._by_messages else self.service.transport)
        if remote and reader is not None:  # a job on one node has no transport
            reader.read(self.handle, remote, words, read_near)
        else:
            read_near()

    def load(self, ids: I64, positions: I64, out: Array) -> None:
        """Copy rows of free sources: ``out[p] = row ids[p]`` for each p of ``positions``.

        Args:
            ids: int64[n].
            positions: int64[m].
            out: [n, words], rows as words.

        Raises:
            ClosedError: the window was closed.
        """
        with UNINTERRUPTED, self._gate:
            hosts = list(self._words)
            by_host = [(host, positions) for host in hosts]
            if len(hosts) > 1:
                by_host = [(host, positions[at]) for host, at in split_by_range(ids[positions], self.offsets)]
            for host, where in by_host:
                table = self._words[host]
                load_rows(table, self._first[host], ids, where, out.view(table.dtype))

    def fetch(self, rows: I64, pool: RowPool, meanwhile: Callable[[], None]) -> tuple[I64, Array]:
        """Read rows into memory of a pool, those of a host next to each other, as they come. One-sided.

        Args:
            rows: int64[n], distinct, without rows of free sources.
            pool: has the memory.
            meanwhile: the caller's work while they travel; called once.

        Returns:
            int64[n], the place of each row; and [n, words], the rows by place.

        Raises:
            ClosedError: the window was closed, here or at a host.
        """
        order, bounds = order_by_range(rows, self.offsets)
        places = np.empty(len(rows), np.int64)
        places[order] = np.arange(len(rows))
        words = as_words(pool.empty((len(rows), *self.row_shape), self.dtype))
        ordered = rows[order]
        by_host = [(h, np.arange(bounds[h], bounds[h + 1])) for h in np.flatnonzero(np.diff(bounds)).tolist()]
        with UNINTERRUPTED, self._gate:
            near = [self._begin(host, ordered, at) for host, at in by_host if host in self._sources]

            def read_near() -> None:
                meanwhile()
                for ticket, positions in near:
                    ticket.place(words, positions)

            self._read(by_host, ordered, words, read_near)
        return places, words

    def _begin(self, host: int, ids: I64, positions: I64) -> tuple[Ticket, I64]:
        """Begin to read distinct rows of a near host; return the positions in the order of the rows."""
        positions = positions[np.argsort(ids[positions])]
        return self._sources[host].read_ahead(ids[positions] - self._first[host]), positions

    def retire(self) -> None:
        """Refuse reads and writes from now on, and wait for those of other threads.

        Before :meth:`close`, while hosts answer.
        """
        with self.world.watch("reads and writes of rows that are freed"):
            self._gate.drain()

    def _remote_rows(self, host: int, ids: I64, positions: I64) -> RemoteRows:
        begin, end = self.offsets[host : host + 2].tolist()
        return RemoteRows(int(self.world.hosts[host]), end - begin, ids[positions] - begin, positions)

    def scatter(self, ids: I64, values: Array) -> None:
        """Write ``values`` ([n, *row_shape], C-contiguous) to rows ``ids``; the last of equal rows wins.

        Each host's lock is held while its rows are written.

        One-sided; complete at the target when the call returns.

        Raises:
            ClosedError: the window was closed, here or at a host.
        """
        with UNINTERRUPTED, self._gate:
            if values.size == 0:
                return
            if self._by_messages:
                raise InvalidArgumentError(NOT_MEMORY)
            words = as_words(values)
            remote = []
            for host, positions in split_by_range(ids, self.offsets):
                if host in self._words:
                    table = self._words[host]
                    with self.service.mutex.hold(host):
                        scatter_rows(words.view(table.dtype), positions, table, ids[positions] - self.offsets[host])
                        self._win.Sync()
                else:
                    remote.append(self._remote_rows(host, ids, positions))
            if remote:
                self.service.transports[0].write(self.handle, remote, words)

    def host_of(self, ids: I64) -> I32:
        """Return int32[n], the host that holds each row."""
        return (np.searchsorted(self.offsets, ids, side="right") - 1).astype(np.int32)

    def sync(self) -> None:
        """Order plain stores and loads of this process with the other processes'."""
        if self._win:
            self._win.Sync()

    @collective("world.comm")
    def close(self) -> None:
        """Free the memory; a second call does nothing."""
        self._gate.shut()
        if not self._open:
            return
        self._open = False
        win, self._win = self._win, MPI.WIN_NULL
        with self.world.watch("closing a window"):
            if not self.world.is_alone:
                self.service.forget(self.handle)
                self._row.Free()
            self._sources.clear()
            self._words.clear()
            if win:
                win.Unlock_all()
                win.Free()
            if self._shared:
                self._shared.Free()
