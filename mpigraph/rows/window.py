"""An array of rows divided among the hosts: plain loads where memory is shared, a transport where it is not.

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
from mpigraph.rows.transport import RemoteRows, Transport, WindowHandle

_ZEROED_PER_SECOND = 1e8  # bytes, at the very least


class RowWindow:
    """An array of rows divided among the hosts, read and written by global row.

    Attributes:
        offsets: int64[H + 1]; host h holds the rows ``[offsets[h], offsets[h + 1])``.
        row_shape: shape of one row.
        dtype: dtype of the elements.
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
    ) -> None:
        """Allocate the rows, zeroed.

        Args:
            service: the job's transports and windows.
            offsets: see the attributes.
            row_shape: see the attributes.
            dtype: see the attributes.
            name: for errors, such as "tensor 'feat'".

        Raises:
            SharedMemoryError: a node's shared memory cannot hold its rows; on every rank.
        """
        self.service = service
        self.world = world = service.world
        self.offsets = np.ascontiguousarray(offsets, np.int64)
        self.row_shape = tuple(row_shape)
        self.dtype = np.dtype(dtype)
        self.row_bytes = self.dtype.itemsize * int(np.prod(self.row_shape, dtype=np.int64))
        self._gate = Gate("this window was closed")
        local = np.flatnonzero(world.is_local).tolist()
        self._memory: dict[int, Array] = {}  # by local host
        block = self._share(local, f"{name} ({len(self)} rows of {self.row_bytes} bytes)")
        self._block: Block | None = block  # until the window is closed
        self._words = {host: as_words(rows) for host, rows in self._memory.items()}
        self._first = {host: int(self.offsets[host]) for host in local}
        self._register(block)

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

    @collective("world.comm")
    def _register(self, block: Block) -> None:
        """Tell the transports of the window."""
        world, service = self.world, self.service
        with world.watch("opening a window"):
            self._row = MPI.BYTE.Create_contiguous(self.row_bytes).Commit()
            held = self.offsets[world.host_index + 1] - self.offsets[world.host_index] if world.is_host else 0
            words = self._words.get(world.host_index)
            self.handle = WindowHandle(
                service.number_window(),
                block.win,
                block.begin,
                self._row,
                self.row_bytes,
                service.mutex,
                int(held),
                as_words(np.empty((0, *self.row_shape), self.dtype)) if words is None else words[:0],
                words,
            )
            service.packed.register(self.handle)
            world.comm.Barrier()

    def memory(self, host: int) -> Array:
        """Return the rows of local host ``host``, writable. Write rows of a tensor through the tensor alone.

        Raises:
            ClosedError: the window was closed.
        """
        if self._block is None:
            raise ClosedError("this window was closed")
        return self._memory[host]

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

        def load_local() -> None:
            for host, positions in by_host:
                if host in self._words:
                    table = self._words[host]
                    move_rows(table, ids[positions], self._first[host], words.view(table.dtype), positions)

        with UNINTERRUPTED, self._gate:
            out = np.empty((len(ids), *self.row_shape), self.dtype) if out is None else out
            if out.size:
                words = as_words(out)
                by_host = split_by_range(ids, self.offsets)
                remote = self._remote(by_host, ids)
                self._read(remote, words, load_local, transport)
        return out

    def _read(
        self, remote: list[RemoteRows], words: Array, meanwhile: Callable[[], None], transport: Transport | None = None
    ) -> None:
        """Read remote rows, and do the caller's work meanwhile."""
        reader = transport or self.service.transport
        if remote and reader:
            reader.read(self.handle, remote, words, meanwhile)
        else:
            meanwhile()

    def _remote(self, by_host: Sequence[tuple[int, I64]], ids: I64, distinct: bool = False) -> list[RemoteRows]:
        """Return the remote ones of ``ids``, all ``distinct`` or not, at the positions of each host."""
        remote = []
        for host, positions in by_host:
            if host not in self._words:
                first, held = self._range(host)
                remote.append(
                    RemoteRows(int(self.world.hosts[host]), held, ids[positions] - first, positions, distinct)
                )
        remote.sort(key=lambda rows: rows.rank < self.world.rank)  # else all ranks ask the same host first
        return remote

    def _range(self, host: int) -> tuple[int, int]:
        """Return the row that counts as a host's first one, and the number of rows that the host holds."""
        begin, end = self.offsets[host : host + 2].tolist()
        return begin, end - begin

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
            hosts = list(self._words)
            by_host = [(host, positions) for host in hosts]
            if len(hosts) > 1:
                by_host = [(host, positions[at]) for host, at in split_by_range(ids[positions], self.offsets)]
            for host, where in by_host:
                table = self._words[host]
                move_rows(table, ids[where], self._first[host], out.view(table.dtype), where)

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
        remote = self._remote(by_host, rows[order], distinct=True)
        with UNINTERRUPTED, self._gate:
            self._read(remote, words, meanwhile)
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
                self.service.packed.write(self.handle, remote, words)

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
        if block is None:
            return
        with self.world.watch("closing a window"):
            self.service.packed.forget(self.handle)
            self._row.Free()
            self._memory.clear()
            self._words.clear()
            self.service.segments.give_back(block)


_OF_ITS_ROWS = ("_memory", "_words", "_first", "_gate")


class WindowPart(RowWindow):
    """Rows of another window that lie next to each other on each host, as a window; the memory is the other's.

    Attributes:
        whole: the other window.
    """

    def __init__(self, whole: RowWindow, offsets: I64, begins: I64) -> None:
        """Give access to rows.

        Args:
            whole: see the attributes.
            offsets: int64[H + 1], the hosts' ranges of these rows.
            begins: int64[H], where they begin on each host, counted from its first row in ``whole``.
        """
        vars(self).update({name: value for name, value in vars(whole).items() if name not in _OF_ITS_ROWS})
        self.whole = whole
        self.offsets = offsets
        self._begins = begins
        self._gate = Gate("this window was closed")

    # made when they are needed: there may be thousands of windows that are only read as a whole

    @cached_property
    def _memory(self) -> dict[int, Array]:  # type: ignore[override]
        return {host: self.whole.memory(host)[at] for host, at in self._places}

    @cached_property
    def _words(self) -> dict[int, Array]:  # type: ignore[override]
        return {host: self.whole._words[host][at] for host, at in self._places}

    @cached_property
    def _first(self) -> dict[int, int]:  # type: ignore[override]
        return {host: int(self.offsets[host]) for host, _ in self._places}

    @property
    def _places(self) -> list[tuple[int, slice]]:
        """The local hosts, and the place of the rows on each among its rows of the whole."""
        ends = self._begins + np.diff(self.offsets)
        return [(host, slice(int(self._begins[host]), int(ends[host]))) for host in self.whole._memory]

    def _range(self, host: int) -> tuple[int, int]:
        return int(self.offsets[host] - self._begins[host]), self.whole._range(host)[1]

    @collective("world.comm")
    def close(self) -> None:
        """Refuse access from now on; the memory is freed with the other window."""
        self._gate.shut()
        self._block = None
        self._memory = {}
        self._words = {}
