"""Tables of rows in one window: plain loads where memory is shared, a transport where it is not.

Each table is divided among the hosts in its own way. All is done by *numbers* of rows: host after host, on each table
after table. So rows of many tables, such as features that thousands of relations have in common, are read, cached and
allocated at once, and a table that is alone has its own rows as numbers.

The memory is a block of a window (``rows/segments.py``), which stays locked for all: only ``Get`` and ``Flush`` (MPI
4.1, section 12.5: passive target). A rank loads and stores rows of hosts on its node; a transport reads the others
meanwhile, and their hosts write them.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from mpigraph.arrays import I32, I64, Array
from mpigraph.collective import collective
from mpigraph.errors import ClosedError
from mpigraph.kernels.row_ops import as_words, move_rows, order_by_range, split_by_range
from mpigraph.mpi.messages import Gate
from mpigraph.mpi.wait import UNINTERRUPTED
from mpigraph.rows.segments import Block, RowPool
from mpigraph.rows.service import RowService
from mpigraph.rows.transport import RemoteRows, Transport

_ZEROED_PER_SECOND = 1e8  # bytes, at the very least
_COPIED = 64 << 20  # bytes of one broadcast
_COPIED_PER_SECOND = 1e7  # bytes, at the very least


class RowWindow:
    """Tables of rows, each divided among the hosts, read and written by numbers of rows.

    Attributes:
        tables: int64[tables, H + 1]; host h holds the rows ``[tables[t, h], tables[t, h + 1])`` of table t.
        starts: int64[tables + 1, H], where the rows of each table begin among those of a host.
        offsets: int64[H + 1]; host h holds the rows with the numbers ``[offsets[h], offsets[h + 1])``.
        row_shape: shape of one row.
        row_bytes: bytes of one row.
        dtype: dtype of the elements.
        number: the window's number, the same on every rank.
        win: the MPI window.
        begin: the byte of it where the rows begin, on every host.
        row: datatype of one row.
        words: the rows that this rank holds, 2-D as words (see ``kernels/row_ops.py``); None if it is no host.
        like: [0, words], of the shape and dtype of rows that travel.
        tensors: numbers of those that have a table and are not closed; none if the tables are no tensors.
        untold: numbers of those whose rows this rank has written, or may at any time, unknown to others yet.
        version: grows with that of any tensor; the same on every rank after each control call.
    """

    @collective("world.comm")
    def __init__(
        self,
        service: RowService,
        tables: Sequence[I64] | I64,
        row_shape: Sequence[int],
        dtype: npt.DTypeLike,
        name: str = "a window",
    ) -> None:
        """Allocate the rows, zeroed.

        Args:
            service: the job's transports and windows.
            tables: see the attributes; int64[H + 1] for a single one.
            row_shape: see the attributes.
            dtype: see the attributes.
            name: for errors, such as "tensor 'feat'".

        Raises:
            SharedMemoryError: a node's shared memory cannot hold its rows; on every rank.
        """
        self.service = service
        self.world = world = service.world
        self.tables = np.array(tables, np.int64).reshape(-1, len(world.hosts) + 1)
        self.starts = np.pad(np.cumsum(np.diff(self.tables, axis=1), axis=0), ((1, 0), (0, 0)))
        self.offsets = np.append(0, np.cumsum(self.starts[-1]))
        self.row_shape = tuple(row_shape)
        self.dtype = np.dtype(dtype)
        self.row_bytes = self.dtype.itemsize * int(np.prod(self.row_shape, dtype=np.int64))
        self.tensors: set[int] = set()
        self.untold: set[int] = set()
        self.version = 0
        self._gate = Gate(f"{name} was closed")
        self._name = name
        local = np.flatnonzero(world.is_local).tolist()
        self._memory: dict[int, Array] = {}  # by local host
        block = self._share(local, f"{name} ({len(self)} rows of {self.row_bytes} bytes)")
        self._block: Block | None = block  # until the window is closed
        self._copies: Block | None = None
        self._words = {host: as_words(rows) for host, rows in self._memory.items()}
        self.words = self._words.get(world.host_index)
        self.like = as_words(np.empty((0, *self.row_shape), self.dtype)) if self.words is None else self.words[:0]
        self.win, self.begin = block.win, block.begin
        with world.watch("opening a window"):
            self.row = MPI.BYTE.Create_contiguous(self.row_bytes).Commit()
            self.number = service.number_window()
            service.packed.register(self)
            world.comm.Barrier()

    @collective("world.comm")
    def _share(self, local: Sequence[int], what: str) -> Block:
        """Allocate zeroed rows that the ranks of a node share."""
        world = self.world
        sizes = np.diff(self.offsets) * self.row_bytes
        patience = 1 + int(sizes.max(initial=0)) / _ZEROED_PER_SECOND / world.config.timeout
        with world.watch(f"allocating {what}", patience):
            block = self.service.segments.take(sizes, self.service.one_sided, what)
            for host in local:
                memory = block.memory(host)[: sizes[host]]
                if host == world.host_index:
                    memory[:] = 0
                rows = memory.view(self.dtype) if self.row_bytes else np.empty(0, self.dtype)
                self._memory[host] = rows.reshape(np.diff(self.offsets)[host], *self.row_shape)
            block.win.Sync()
        return block

    def bytes_elsewhere(self) -> I64:
        """Return int64[nodes], the bytes that other nodes hold."""
        sizes = np.diff(self.offsets) * self.row_bytes
        elsewhere: I64 = sizes.sum() - np.bincount(self.world.nodes_of_hosts, sizes).astype(np.int64)
        return elsewhere

    @collective("world.comm")
    def _copy_to_nodes(self, firsts: MPI.Comm) -> None:
        """Do the work of :func:`copy_to_nodes`; ``firsts`` has the first host of each node, by node, and no others."""
        world, sizes = self.world, np.diff(self.offsets) * self.row_bytes
        of_first = np.zeros_like(sizes)
        of_first[world.first_hosts()] = self.bytes_elsewhere()
        copies = self._copies = self.service.segments.take(of_first, False, f"a copy of {self._name} on each node")
        free = copies.memory(world.hosts_of_node(world.node_index)[0])
        for host, size in enumerate(sizes.tolist()):
            if not world.is_local[host]:
                rows, free = free[:size].view(self.dtype), free[size:]
                self._memory[host] = rows.reshape(-1, *self.row_shape)
                self._words[host] = as_words(self._memory[host])
            if firsts != MPI.COMM_NULL:
                rows = self._memory[host].reshape(-1).view(np.uint8)
                for at in range(0, size, _COPIED):
                    firsts.Bcast(rows[at : at + _COPIED], int(world.nodes_of_hosts[host]))

    def numbers(self, tables: int | I64, ids: I64, counts: int | I64 = 1) -> I64:
        """Return int64[n], the numbers of rows; of one table they rise with the rows.

        Args:
            tables: a table, or int64[k], some.
            ids: int64[n], rows of it, or of the first of them, then of the next; all valid.
            counts: of several tables the number of rows of each, int64[k].
        """
        if len(self.tables) == 1:
            return ids
        begins, shifts, firsts = self._numbering
        rows = ids + np.repeat(firsts[tables], counts)
        numbers: I64 = rows + shifts[np.searchsorted(begins, rows, side="right") - 1]
        return numbers

    @cached_property
    def _numbering(self) -> tuple[I64, I64, I64]:
        """Rows of all tables in a line, table after table: their begins by table and host, how far numbers exceed them.

        And the begin of each table.
        """
        firsts = np.cumsum(self.tables[:, -1]) - self.tables[:, -1]
        begins = self.tables[:, :-1] + firsts[:, None]
        return begins.ravel(), (self.offsets[:-1] + self.starts[:-1] - begins).ravel(), firsts

    def segment(self, table: int, host: int) -> Array:
        """Return a table's rows on local host ``host``; otherwise as :meth:`memory`."""
        begin, end = self.starts[table : table + 2, host]
        return self.memory(host)[begin:end]

    def begins(self, host: int) -> I64:
        """Return int64[tables + 1], where the rows of each table begin among those of a host."""
        return np.ascontiguousarray(self.starts[:, host])

    def memory(self, host: int) -> Array:
        """Return the rows of local host ``host``, writable. Write rows of a tensor through the tensor alone.

        Raises:
            ClosedError: the window was closed.
        """
        if self._block is None:
            raise ClosedError(f"{self._name} was closed")
        return self._memory[host]

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def gather(self, ids: I64, out: Array | None = None, transport: Transport | None = None) -> Array:
        """Read rows in the order of ``ids``. One-sided.

        Args:
            ids: int64[n], numbers of rows (checked by the caller); each is read once.
            out: [n, *row_shape] to fill, C-contiguous; a new array if None.
            transport: reads the remote rows; the service's choice if None.

        Raises:
            ClosedError: the window was closed, here or at a host.
        """
        with UNINTERRUPTED, self._gate:
            out = np.empty((len(ids), *self.row_shape), self.dtype) if out is None else out
            if out.size:
                words = as_words(out)
                by_host = split_by_range(ids, self.offsets)
                remote = [rows.once() for rows in self._remote(by_host, ids)]
                distinct = [rows for rows, _, _ in remote]
                self._read(distinct, words, lambda: self._load(by_host, ids, words), transport)
                for _, repeats, equal in remote:
                    move_rows(words, equal, 0, words, repeats)
        return out

    def _read(
        self, remote: list[RemoteRows], words: Array, meanwhile: Callable[[], None], transport: Transport | None = None
    ) -> None:
        """Read remote rows, and do the caller's work meanwhile."""
        reader = transport or self.service.transport
        if remote and reader:
            reader.read(self, remote, words, meanwhile)
        else:
            meanwhile()

    def _remote(self, by_host: Sequence[tuple[int, I64]], ids: I64) -> list[RemoteRows]:
        """Return the remote ones of ``ids`` at the positions of each host."""
        remote = []
        for host, positions in by_host:
            if host not in self._words:
                remote.append(RemoteRows(int(self.world.hosts[host]), ids[positions] - self.offsets[host], positions))
        remote.sort(key=lambda rows: rows.rank < self.world.rank)  # else all ranks ask the same host first
        return remote

    def _load(self, by_host: Sequence[tuple[int, I64]], ids: I64, out: Array) -> None:
        """Copy those of ``ids`` that lie on this node, at the positions of each host, to the same positions."""
        for host, positions in by_host:
            if host in self._words:
                table = self._words[host]
                move_rows(table, ids[positions], int(self.offsets[host]), out.view(table.dtype), positions)

    def load(self, ids: I64, positions: I64, out: Array) -> None:
        """Copy rows of this node: ``out[p] = row ids[p]`` for each p of ``positions``.

        Args:
            ids: int64[n].
            positions: int64[m].
            out: [n, words], rows as words.

        Raises:
            ClosedError: the window was closed.
        """
        with UNINTERRUPTED, self._gate:
            by_host = [(host, positions) for host in self._words]
            if len(by_host) > 1:
                by_host = [(host, positions[at]) for host, at in split_by_range(ids[positions], self.offsets)]
            self._load(by_host, ids, out)

    def fetch(self, rows: I64, pool: RowPool, meanwhile: Callable[[], None]) -> tuple[I64, Array]:
        """Read rows, those of a host next to each other. One-sided.

        Args:
            rows: int64[n], distinct, of other nodes.
            pool: has the memory.
            meanwhile: the caller's work while they travel; called once.

        Returns:
            int64[n], the place of each of ``rows``; and [n, words], the rows by place.

        Raises:
            ClosedError: the window was closed, here or at a host.
        """
        order, which, bounds = order_by_range(rows, self.offsets)
        places = np.empty(len(rows), np.int64)
        places[order] = np.arange(len(rows))
        words = as_words(pool.empty((len(rows), *self.row_shape), self.dtype))
        by_host = [(host, np.arange(*bounds[i : i + 2])) for i, host in enumerate(which.tolist())]
        with UNINTERRUPTED, self._gate:
            self._read(self._remote(by_host, rows[order]), words, meanwhile)
        return places, words

    def retire(self) -> None:
        """Refuse reads and writes from now on, and wait for those of other threads.

        Before :meth:`close`, while hosts answer.
        """
        self._gate.drain("reads and writes of rows that are freed")

    def scatter(self, ids: I64, values: Array) -> None:
        """Write ``values`` ([n, *row_shape], C-contiguous) to rows ``ids``; the last of equal rows wins.

        Each host's lock is held while its rows are written.

        One-sided; complete at the target when the call returns. Raises ClosedError if the window was closed, here or at
        a host.
        """
        with UNINTERRUPTED, self._gate:
            if values.size == 0:
                return
            words = as_words(values)
            by_host = split_by_range(ids, self.offsets)
            for host, positions in by_host:
                if host in self._words:
                    table = self._words[host]
                    with self.service.mutex.hold(host):
                        move_rows(words.view(table.dtype), positions, 0, table, ids[positions] - self.offsets[host])
                        self.sync()
            remote = self._remote(by_host, ids)
            if remote:
                self.service.packed.write(self, remote, words)

    def host_of(self, ids: I64) -> I32:
        """Return int32[n], the host that holds each row."""
        return (np.searchsorted(self.offsets, ids, side="right") - 1).astype(np.int32)

    def sync(self) -> None:
        """Order plain stores and loads of this process with the other processes'."""
        if self._block:
            self._block.win.Sync()

    @collective("world.comm")
    def close(self) -> None:
        """Free the memory; a second call does nothing."""
        self._gate.shut()
        block, self._block = self._block, None
        copies, self._copies = self._copies, None
        if block is None:
            return
        with self.world.watch("closing a window"):
            self.service.packed.forget(self)
            self.row.Free()
            self._memory.clear()
            self._words.clear()
            self.words = None
            for held in (block, copies):
                if held:
                    self.service.segments.give_back(held)


@collective("world.comm")
def copy_to_nodes(windows: Sequence[RowWindow], doing: str) -> None:
    """Give each node a copy of the other nodes' rows, so that its ranks load all rows; none is written any more.

    Args:
        windows: whose rows.
        doing: names the work.

    Raises:
        SharedMemoryError: a node's shared memory cannot hold the copies; on every rank.
    """
    world, segments = windows[0].world, windows[0].service.segments
    nbytes = sum(int(window.bytes_elsewhere().max()) for window in windows)
    is_first = world.is_host and world.host_index in world.first_hosts()
    firsts = world.comm.Split(0 if is_first else MPI.UNDEFINED, world.node_index)
    try:
        with world.watch(doing, 1 + nbytes / _COPIED_PER_SECOND / world.config.timeout):
            for window in windows:
                window._copy_to_nodes(firsts)
            segments.sync()
            world.comm.Barrier()
            segments.sync()
    finally:
        if firsts != MPI.COMM_NULL:
            firsts.Free()
