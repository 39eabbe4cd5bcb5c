"""Far rows by request and reply: the host packs the wanted rows and sends them.

A request is one message: window, number of rows, bytes of an id, tag of the reply, then the ids (distinct rows,
counted from the host's first one, 32 bits wide where they fit). The reply is the rows as they are stored, in the order
of the ids, in chunks of :data:`CHUNK` bytes. A chunk of no bytes tells that the request cannot be answered: the window
was closed, or the request makes no sense.

The reader sends every far host one request and puts each chunk into its place while the next ones travel. Each request
has a tag of its own, so several threads of a rank may read at once. :class:`RowServer` answers on the hosts, whenever
somebody calls ``progress``; each call packs a chunk or two, so a slow reader only keeps its own few chunks waiting.
"""

from collections import deque
from collections.abc import Callable
from threading import Lock

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from mpigraph.arrays import I64, U8, Array
from mpigraph.errors import ClosedError
from mpigraph.kernels.row_ops import gather_rows
from mpigraph.log import get_logger
from mpigraph.mpi.watch import Backoff
from mpigraph.mpi.world import World
from mpigraph.rows.pool import RowPool
from mpigraph.rows.transport import (
    RemoteRows,
    Traffic,
    Transport,
    WindowHandle,
    nothing,
    split_requests,
)

__all__ = ["CHUNK", "REQUEST", "PackedTransport", "RowServer"]

CHUNK = 4 << 20  # bytes: packing, sending and placing overlap, and memory stays small
REQUEST = 0  # tag of a request; replies have others
_TAGS = 1 << 15  # MPI allows at least this many
_HEADER_WORDS = 4  # window, rows, bytes of an id, tag of the reply
_OF_ONE, _OF_ALL = 3, 24  # chunks in flight of one reply, and of all replies together
_SPARSE = 64  # rows held for each row wanted, above which a table of them is slower than sorting


def _rows_per_chunk(row_bytes: int) -> int:
    return max(1, CHUNK // row_bytes)


def _chunks_in_flight(replies: int) -> int:
    """How many chunks of each of some replies may be outstanding at once."""
    return max(1, min(_OF_ONE, _OF_ALL // replies))


def _as_bytes(rows: Array) -> U8:
    return rows.reshape(-1).view(np.uint8)


class _Wanted:
    """The distinct rows of a request, and where they go.

    Attributes:
        rows: int64[m], distinct.
        places: int64[m], the position in ``out`` of each.
        repeats: int64[r], positions of further copies, and ``originals`` int64[r], the positions of the first ones.
    """

    def __init__(self, wanted: RemoteRows) -> None:
        first = _first_alike(wanted)
        is_first = first == np.arange(len(first))
        again = np.flatnonzero(~is_first)
        self.rows = wanted.rows
        self.places = wanted.positions
        self.repeats = self.places[again]
        self.originals = self.places[first[again]]
        if len(again):
            self.rows = self.rows[is_first]
            self.places = self.places[is_first]

    def message(self, number: int, tag: int) -> U8:
        """The request."""
        dtype: npt.DTypeLike = np.uint32 if int(self.rows.max()) < 1 << 32 else np.int64
        ids = self.rows.astype(dtype)
        header = np.array([number, len(ids), ids.itemsize, tag], np.int64)
        return np.concatenate([header.view(np.uint8), ids.view(np.uint8)])


def _first_alike(wanted: RemoteRows) -> I64:
    """int64[n]: for each wanted row the index of the first that is the same."""
    count = len(wanted.rows)
    if wanted.held > _SPARSE * count:
        _, first, which = np.unique(wanted.rows, return_index=True, return_inverse=True)
        return first[which]
    table = np.empty(wanted.held, np.int64)  # only entries that were written are read
    table[wanted.rows[::-1]] = np.arange(count - 1, -1, -1)
    return table[wanted.rows]


class _Incoming:
    """One outstanding request of this rank, begun by construction, with at most ``most`` receives posted.

    Attributes:
        failed: the host could not answer.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        window: WindowHandle,
        wanted: RemoteRows,
        tag: int,
        out: Array,
        pool: RowPool,
        most: int,
    ) -> None:
        self._comm, self._from, self._out, self._pool = comm, (wanted.rank, tag), out, pool
        self._wanted = _Wanted(wanted)
        self._row_bytes = window.row_bytes
        self._asked = 0  # rows that a receive was posted for
        self._receives: deque[tuple[MPI.Request, int, Array, bool]] = deque()  # first row, chunk, in its place already
        self.failed = False
        self._message = self._wanted.message(window.number, tag)
        self.nbytes = self._message.nbytes
        for _ in range(most):
            self._post()
        self._sending = comm.Isend(self._message, wanted.rank, REQUEST)

    def _post(self) -> None:
        """Be ready for the next chunk: in its place if that is one stretch, else in memory of the pool."""
        begin = self._asked
        count = min(_rows_per_chunk(self._row_bytes), len(self._wanted.rows) - begin)
        if count <= 0:
            return
        self._asked += count
        first, last = self._wanted.places[begin], self._wanted.places[begin + count - 1]
        in_place = last - first == count - 1 and len(self._wanted.repeats) == 0  # places ascend
        shape, dtype = (count, self._out.shape[1]), self._out.dtype
        chunk = self._out[first : last + 1] if in_place else self._pool.empty(shape, dtype)
        request = self._comm.Irecv([_as_bytes(chunk), MPI.BYTE], *self._from)
        self._receives.append((request, begin, chunk, in_place))

    def step(self, traffic: Traffic) -> bool:
        """Place the next chunk if it is here; return whether it was."""
        status = MPI.Status()
        if not self._receives or not self._receives[0][0].Test(status):
            return False
        _, begin, chunk, in_place = self._receives.popleft()
        if status.Get_count(MPI.BYTE) == 0:
            self._give_up()
            return True
        traffic.received(chunk.nbytes)
        self._post()
        if not in_place:
            places = self._wanted.places[begin : begin + len(chunk)]
            gather_rows(chunk, np.arange(len(chunk)), places, self._out)
        return True

    def _give_up(self) -> None:
        """Nothing more will come."""
        self.failed = True
        for request, *_ in self._receives:
            request.Cancel()
            request.Wait()
        self._receives.clear()
        self._asked = len(self._wanted.rows)

    @property
    def done(self) -> bool:
        return not self._receives and self._sending.Test()

    def repeat(self) -> None:
        """Copy rows that were wanted several times."""
        if len(self._wanted.repeats):
            gather_rows(self._out, self._wanted.originals, self._wanted.repeats, self._out)


class PackedTransport(Transport):
    """Reads far rows by asking their hosts, and answers for the rows of this rank.

    Attributes:
        server: the side that answers.
    """

    name = "packed"
    how = "packed by their host"

    def __init__(self, world: World) -> None:
        """Make a communicator for requests and rows."""
        super().__init__(world)
        self._comm = world.dup()
        self._lock = Lock()
        self._tag = REQUEST
        self._pool = RowPool(kept=4 * _OF_ONE)
        self.server = RowServer(self._comm, self._pool, self.traffic)

    def register(self, window: WindowHandle) -> None:
        """Answer for a window from now on, if this rank holds rows of it."""
        if window.words is not None:
            self.server.enter(window.number, window.words)

    def forget(self, window: WindowHandle) -> None:
        """Answer no more for a window."""
        self.server.forget(window.number)

    def read(self, window: WindowHandle, wanted: list[RemoteRows], out: Array, meanwhile: Callable[[], None]) -> None:
        """See :class:`~mpigraph.rows.transport.Transport`. The hosts answer when they are asked for progress.

        Raises:
            ClosedError: a host has closed the window.
        """
        failed: list[int] = []
        for requests in split_requests(wanted):
            ranks = ", ".join(str(rows.rank) for rows in requests)
            with self.world.watch(f"rows of window {window.number} from rank(s) {ranks}"):
                most = _chunks_in_flight(len(requests))
                replies = [self._ask(window, rows, out, most) for rows in requests]
                meanwhile()
                self._receive(replies)
            failed += [rows.rank for rows, reply in zip(requests, replies, strict=True) if reply.failed]
            meanwhile = nothing
        if failed:
            raise ClosedError(f"rank {failed[0]} does not hold these rows of window {window.number}: it was closed")

    def _ask(self, window: WindowHandle, wanted: RemoteRows, out: Array, most: int) -> _Incoming:
        with self._lock:
            self._tag = self._tag % (_TAGS - 1) + 1
            tag = self._tag
        reply = _Incoming(self._comm, window, wanted, tag, out, self._pool, most)
        self.traffic.sent(reply.nbytes)
        return reply

    def _receive(self, replies: list[_Incoming]) -> None:
        """Place what comes until all is there."""
        backoff = Backoff(spins=2, longest=1e-4)  # longer sleeps hold up the transfer: MPI works when it is called
        waiting = replies
        while waiting:
            moved = [reply.step(self.traffic) for reply in waiting]
            if any(moved):
                backoff.reset()
            else:
                backoff.pause()
            waiting = [reply for reply in waiting if not reply.done]
        for reply in replies:
            reply.repeat()

    def progress(self) -> bool:
        """Advance the replies to other ranks; return whether any is outstanding."""
        return self.server.poll()

    def close(self) -> None:
        """Send what is still being sent. Every reader must have what it asked for."""
        with self.world.watch("sending the last rows"):
            while self.server.poll():
                pass


class _Outgoing:
    """The reply to one request. ``table`` is None if it cannot be answered."""

    def __init__(self, reader: int, tag: int, number: int, table: Array | None, rows: Array) -> None:
        self.number = number
        self.table = table
        self._to = (reader, tag)
        self._rows = rows
        self._at = 0
        self._sends: deque[tuple[MPI.Request, Array]] = deque()

    def step(self, comm: MPI.Intracomm, pool: RowPool, traffic: Traffic, most: int) -> bool:
        """Send the next chunk if fewer than ``most`` are outstanding; return whether anything moved."""
        moved = False
        while self._sends and self._sends[0][0].Test():
            self._sends.popleft()  # the pool has the chunk again
            moved = True
        if self._at < len(self._rows) and len(self._sends) < most:
            chunk = self._pack(pool)
            self._sends.append((comm.Isend([_as_bytes(chunk), MPI.BYTE], *self._to), chunk))
            traffic.sent(chunk.nbytes)
            moved = True
        return moved

    def _pack(self, pool: RowPool) -> Array:
        if self.table is None:
            self._at = len(self._rows)
            return np.empty(0, np.uint8)
        row_bytes = self.table.shape[1] * self.table.itemsize
        rows = self._rows[self._at : self._at + _rows_per_chunk(row_bytes)].astype(np.int64)
        self._at += len(rows)
        chunk = pool.empty((len(rows), self.table.shape[1]), self.table.dtype)
        gather_rows(self.table, rows, np.arange(len(rows)), chunk)
        return chunk

    @property
    def done(self) -> bool:
        return self._at == len(self._rows) and not self._sends


class RowServer:
    """Answers requests for the rows that this rank holds, without ever waiting for a reader."""

    def __init__(self, comm: MPI.Intracomm, pool: RowPool, traffic: Traffic) -> None:
        """Answer what comes on ``comm``."""
        self._comm = comm
        self._pool = pool
        self._traffic = traffic
        self._lock = Lock()  # poll() may run in another thread than enter() and forget()
        self._tables: dict[int, Array] = {}
        self._requests: deque[tuple[MPI.Request, int, U8]] = deque()
        self._replies: list[_Outgoing] = []
        self._backoff = Backoff(spins=2, longest=1e-4)

    def enter(self, number: int, table: Array) -> None:
        """Answer for a window whose rows here are ``table`` (2-D, rows as words)."""
        with self._lock:
            self._tables[number] = table

    def forget(self, number: int) -> None:
        """Answer no more for a window, whose memory may go now."""
        with self._lock:
            self._tables.pop(number, None)
            for reply in self._replies:
                if reply.number == number:
                    reply.table = None

    def poll(self) -> bool:
        """Advance the replies; return whether a request or reply is outstanding.

        What is outstanding needs the MPI library to be called often, so the pauses here are short.
        """
        if self._step():
            self._backoff.reset()
            return True
        busy = bool(self._requests or self._replies)
        if busy:
            self._backoff.pause()
        return busy

    def _step(self) -> bool:
        with self._lock:
            moved = self._accept()
            for reply in self._replies:
                moved |= reply.step(self._comm, self._pool, self._traffic, _chunks_in_flight(len(self._replies)))
            if moved:
                self._replies = [reply for reply in self._replies if not reply.done]
            return moved

    def _accept(self) -> bool:
        """Take in the requests that have come. A long one arrives while its sender is elsewhere: never wait for it."""
        moved = False
        status = MPI.Status()
        while (message := self._comm.Improbe(MPI.ANY_SOURCE, REQUEST, status)) is not None:
            words = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._requests.append((message.Irecv([words, MPI.BYTE]), status.Get_source(), words))
        for _ in range(len(self._requests)):
            request, reader, words = self._requests.popleft()
            if not request.Test():
                self._requests.append((request, reader, words))
                continue
            self._traffic.received(words.nbytes)
            self._replies += self._read_request(reader, words)
            moved = True
        return moved

    def _read_request(self, reader: int, words: U8) -> list[_Outgoing]:
        """The reply to a request, empty if nobody can be answered."""
        if len(words) < 8 * _HEADER_WORDS:
            get_logger().error("rank %d sent a request of %d bytes for rows", reader, len(words))
            return []
        number, count, width, tag = words[: 8 * _HEADER_WORDS].view(np.int64).tolist()
        if not REQUEST < tag < _TAGS:
            get_logger().error("rank %d wants a reply with tag %d", reader, tag)
            return []
        table, refusal = self._tables.get(number), [_Outgoing(reader, tag, number, None, np.zeros(1, np.int64))]
        if table is None or width not in (4, 8) or len(words) != 8 * _HEADER_WORDS + count * width:
            return refusal
        rows = words[8 * _HEADER_WORDS :].view(np.uint32 if width == 4 else np.int64)
        if count and not 0 <= int(rows.min()) <= int(rows.max()) < len(table):
            return refusal
        return [_Outgoing(reader, tag, number, table, rows)]
