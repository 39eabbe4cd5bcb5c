"""Far rows by request and reply: the host packs the wanted rows and sends them. Needs no window.

A request is one message: window, number of rows, bytes of an id, tag of the reply, 0, then the ids (distinct rows,
counted from the host's first one, 32 bits wide where they fit). The reply is the rows as they are stored, in the order
of the ids, in equal chunks of one to two :data:`CHUNK` bytes, or in one of less. A chunk of no bytes tells that the
request cannot be answered: the window was closed, or the request makes no sense.

A request to write has the bytes of a row where the other has 0, and behind the ids, from a multiple of 8 on, the rows:
one chunk. The host holds its lock while it stores them. The reply is one byte.

The reader sends every far host one request and puts each chunk into its place while the next ones travel. Each request
has a tag of its own, so several threads of a rank may read at once. :class:`RowServer` answers on the hosts, whenever
somebody calls ``progress``; each call packs a chunk or two, so a slow reader only keeps its own few chunks waiting.
Both sides of a request are coroutines (``mpi/coroutine.py``): what follows a ``yield`` happens once a message is here.
"""

from collections import deque
from collections.abc import Callable
from threading import Lock

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from mpigraph.arrays import I64, U8, Array
from mpigraph.errors import ClosedError
from mpigraph.kernels.row_ops import first_alike, gather_rows, place_rows, scatter_rows
from mpigraph.log import get_logger
from mpigraph.mpi.agree import no_way_back
from mpigraph.mpi.coroutine import Coroutine, Task, finish
from mpigraph.mpi.wait import TRANSFER, Backoff
from mpigraph.mpi.world import World
from mpigraph.rows.pool import RowPool
from mpigraph.rows.transport import (
    RemoteRows,
    Traffic,
    Transport,
    WindowHandle,
    last_of_equal,
    nothing,
    split_requests,
)

__all__ = ["CHUNK", "REQUEST", "PackedTransport", "RowServer"]

# bytes: packing, sending and placing overlap, and memory stays small; what is left over is no chunk of its own, because
# UCX sends less than 3 MB over TCP in fragments of 64 kB that are copied, which costs both sides half as much again
CHUNK = 4 << 20
REQUEST = 0  # tag of a request; replies have others
_TAGS = 1 << 15  # MPI allows at least this many
_HEADER = 5 * 8  # bytes: window, rows, bytes of an id, tag of the reply, bytes of a row to write
_OF_ONE = 3  # chunks in flight of one reply
_OF_ALL = 24  # and of all replies together
_MOST_REQUESTS = 64  # answered at once; the others wait with their senders
_MOST_BYTES = 64 << 20  # of the requests that are answered at once, unless one alone has more
_REFUSAL = np.empty(0, np.uint8)
_STORED = np.ones(1, np.uint8)
_SPARSE = 64  # rows held for each row wanted, above which a table of them is slower than sorting


def _rows_per_chunk(count: int, row_bytes: int) -> int:
    """How many of ``count`` rows go in each chunk; the last has as many or a few less."""
    chunks = max(1, min(count, count * row_bytes // CHUNK))
    return max(1, -(-count // chunks))


def _chunk(pool: RowPool, rows: int, like: Array) -> Array:
    """Memory for a chunk of rows as those of ``like``; large ones are of one size, to be used again by any."""
    nbytes = rows * like.shape[1] * like.itemsize
    if not CHUNK <= nbytes <= 2 * CHUNK:
        return pool.empty((rows, like.shape[1]), like.dtype)
    return pool.empty((2 * CHUNK,), np.uint8)[:nbytes].view(like.dtype).reshape(rows, like.shape[1])


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

    def __init__(self, wanted: RemoteRows, pool: RowPool) -> None:
        self.rows = wanted.rows
        self.places = wanted.positions
        first, again = _first_alike(wanted, pool)
        self.repeats = self.originals = self.places[:0]
        if again:
            is_first = first == np.arange(len(first))
            self.repeats = self.places[~is_first]
            self.originals = self.places[first[~is_first]]
            self.rows = self.rows[is_first]
            self.places = self.places[is_first]


def _message(number: int, rows: I64, tag: int, row_bytes: int = 0) -> U8:
    """A request for distinct rows, or the beginning of one to write rows of some bytes."""
    dtype: npt.DTypeLike = np.uint32 if int(rows.max()) < 1 << 32 else np.int64
    ids = rows.astype(dtype).view(np.uint8)
    header = np.array([number, len(rows), len(ids) // len(rows), tag, row_bytes], np.int64)
    padding = np.zeros(_rows_at(len(ids)) - len(ids) if row_bytes else 0, np.uint8)
    return np.concatenate([header.view(np.uint8), ids, padding])


def _rows_at(id_bytes: int) -> int:
    """Where behind the header rows to write begin."""
    return -(-id_bytes // 8) * 8


def _first_alike(wanted: RemoteRows, pool: RowPool) -> tuple[I64, int]:
    """int64[n], for each wanted row the index of the first that is the same; and how many have an earlier one."""
    count = len(wanted.rows)
    if wanted.held > _SPARSE * count:
        _, first, which = np.unique(wanted.rows, return_index=True, return_inverse=True)
        return first[which], count - len(first)
    found = np.empty(count, np.int64)
    return found, first_alike(wanted.rows, pool.empty((wanted.held,), np.int32), found)


class PackedTransport(Transport):
    """Reads and writes far rows by asking their hosts, and answers for the rows of this rank.

    Attributes:
        server: the side that answers.

    Collective on ``world.comm``: construction.
    """

    name = "packed"
    how = "packed by their host"
    one_sided = False

    def __init__(self, world: World) -> None:
        """Make a communicator for requests and rows."""
        super().__init__(world)
        self._comm = world.dup()
        self._lock = Lock()
        self._tag = REQUEST
        self._pool = RowPool(kept=4 * _OF_ONE)
        self.server = RowServer(self._comm, world.host_index, self._pool, self.traffic)

    def register(self, window: WindowHandle) -> None:
        """Answer for a window from now on, if this rank holds rows of it."""
        if window.words is not None:
            self.server.enter(window)

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
            what = f"rows of window {window.number} from rank(s) {ranks}"
            with self.world.watch(what), no_way_back(self._comm):  # MPI is about to write to their memory
                most = _chunks_in_flight(len(requests))
                replies = [Task(self._fetch(window, rows, out, most)) for rows in requests]
                meanwhile()
                finish(replies, TRANSFER)
                failed += [rows.rank for rows, reply in zip(requests, replies, strict=True) if not reply.result()]
            meanwhile = nothing
        _raise_refused(failed, window)

    def _fetch(self, window: WindowHandle, wanted: RemoteRows, out: Array, most: int) -> Coroutine[bool]:
        """Ask a host for rows and put them into their places, ``most`` receives posted at a time.

        Returns:
            Whether the host could answer.
        """
        distinct = _Wanted(wanted, self._pool)
        tag = self._next_tag()
        step = _rows_per_chunk(len(distinct.rows), window.row_bytes)
        chunks = iter(range(0, len(distinct.rows), step))
        receives: deque[tuple[MPI.Request, int, Array, bool]] = deque()  # first row, chunk, in its place already

        def post() -> None:
            """Be ready for the next chunk: in its place if that is one stretch, else in memory of the pool."""
            begin = next(chunks, None)
            if begin is None:
                return
            places = distinct.places[begin : begin + step]
            in_place = places[-1] - places[0] == len(places) - 1 and len(distinct.repeats) == 0  # places ascend
            chunk = out[places[0] : places[-1] + 1] if in_place else _chunk(self._pool, len(places), out)
            receives.append((self._comm.Irecv([_as_bytes(chunk), MPI.BYTE], wanted.rank, tag), begin, chunk, in_place))

        for _ in range(most):
            post()
        message = _message(window.number, distinct.rows, tag)
        self.traffic.sent(message.nbytes)
        sending = self._comm.Isend(message, wanted.rank, REQUEST)
        while receives:
            request, begin, chunk, in_place = receives.popleft()
            status = yield request
            if status.Get_count(MPI.BYTE) == 0:  # and nothing more will come
                for request, *_ in receives:
                    request.Cancel()
                    request.Wait()
                yield sending
                return False
            self.traffic.received(chunk.nbytes)
            post()  # before this chunk is placed, so that the next ones travel
            if not in_place:
                place_rows(chunk, distinct.places[begin : begin + len(chunk)], out)
        yield sending
        if len(distinct.repeats):
            gather_rows(out, distinct.originals, distinct.repeats, out)
        return True

    def write(self, window: WindowHandle, leaving: list[RemoteRows], values: Array) -> None:
        """See :class:`~mpigraph.rows.transport.Transport`. The hosts store the rows when they are asked for progress.

        Raises:
            ClosedError: a host has closed the window.
        """
        ranks = ", ".join(str(rows.rank) for rows in leaving)
        what = f"writing rows of window {window.number} of rank(s) {ranks}"
        with self.world.watch(what), no_way_back(self._comm):
            stores = [Task(self._store(window, rows, values)) for rows in leaving]
            finish(stores, TRANSFER)
            refused = [rows.rank for rows, store in zip(leaving, stores, strict=True) if not store.result()]
        _raise_refused(refused, window)

    def _store(self, window: WindowHandle, leaving: RemoteRows, values: Array) -> Coroutine[bool]:
        """Send a host rows to write, some chunks at a time.

        Returns:
            Whether the host has stored them all.
        """
        rows, positions = last_of_equal(leaving)
        step = max(1, CHUNK // window.row_bytes)
        outstanding: deque[tuple[MPI.Request, MPI.Request]] = deque()
        stored = True
        for begin in range(0, len(rows), step):
            if len(outstanding) == _OF_ONE:
                stored &= yield from _answered(*outstanding.popleft())
            tag = self._next_tag()
            some = np.ascontiguousarray(values[positions[begin : begin + step]])
            head = _message(window.number, rows[begin : begin + step], tag, window.row_bytes)
            message = np.concatenate([head, _as_bytes(some)])
            answer = self._comm.Irecv(np.empty(1, np.uint8), leaving.rank, tag)
            self.traffic.sent(message.nbytes)
            outstanding.append((answer, self._comm.Isend(message, leaving.rank, REQUEST)))
        while outstanding:
            stored &= yield from _answered(*outstanding.popleft())
        return stored

    def _next_tag(self) -> int:
        with self._lock:
            self._tag = self._tag % (_TAGS - 1) + 1
            return self._tag

    def progress(self) -> bool:
        """Advance the replies to other ranks; return whether anything moved."""
        return self.server.progress()

    @property
    def outstanding(self) -> bool:
        """Whether a request or reply is not complete."""
        return self.server.outstanding

    def close(self) -> None:
        """Send what is still being sent. Every reader must have what it asked for."""
        with self.world.watch("sending the last rows"):
            backoff = Backoff()
            while self.progress() or self.outstanding:
                backoff.pause(TRANSFER)


def _raise_refused(failed: list[int], window: WindowHandle) -> None:
    if failed:
        raise ClosedError(f"rank {failed[0]} does not hold these rows of window {window.number}: it was closed")


def _answered(answer: MPI.Request, sending: MPI.Request) -> Coroutine[bool]:
    """Wait for the answer to a request to write, and return whether the host has stored the rows."""
    status = yield answer
    stored = status.Get_count(MPI.BYTE) == len(_STORED)
    yield sending
    return stored


class RowServer:
    """Answers requests for the rows that this rank holds, without ever waiting for a reader.

    Requests are taken in as they came, up to bounds that keep memory small however many readers ask. The rest wait, and
    not for ever: a reader is ready for its rows before it asks, and takes each host's as they come, so that every
    request that was taken in is answered whether or not another one is.
    """

    def __init__(self, comm: MPI.Intracomm, host: int, pool: RowPool, traffic: Traffic) -> None:
        """Answer what comes on ``comm``; this rank is ``host``, or -1."""
        self._comm = comm
        self._host = host
        self._pool = pool
        self._traffic = traffic
        self._lock = Lock()  # progress() may run in another thread than enter() and forget()
        self._windows: dict[int, WindowHandle] = {}
        self._replies: dict[Task[None], int] = {}  # and the bytes of its request

    def enter(self, window: WindowHandle) -> None:
        """Answer for a window of which this rank holds rows."""
        with self._lock:
            self._windows[window.number] = window

    def forget(self, number: int) -> None:
        """Answer no more for a window, whose memory may go now."""
        with self._lock:
            self._windows.pop(number, None)

    @property
    def outstanding(self) -> bool:
        """Whether a request or reply is not complete."""
        return bool(self._replies)

    def progress(self) -> bool:
        """Take in the requests that have come, advance each reply by a step, and return whether anything moved."""
        if not self._replies and not self._comm.Iprobe(MPI.ANY_SOURCE, REQUEST):  # nearly always: keep that cheap
            return False
        with self._lock:
            accepted = self._accept()
            moved = any([reply.advance() for reply in self._replies])
            if moved:
                for reply in self._replies:
                    if reply.done:
                        reply.result()  # an error ends the job
                self._replies = {reply: size for reply, size in self._replies.items() if not reply.done}
            return accepted or moved

    def _accept(self) -> bool:
        """Begin to receive requests that have come; a long one arrives while its sender is elsewhere."""
        status = MPI.Status()
        before = len(self._replies)
        while len(self._replies) < _MOST_REQUESTS and self._comm.Iprobe(MPI.ANY_SOURCE, REQUEST, status):
            size = status.Get_count(MPI.BYTE)
            if self._replies and sum(self._replies.values()) + size > _MOST_BYTES:
                break
            message = self._comm.Improbe(status.Get_source(), REQUEST)  # the one that was seen: no other thread is here
            assert message is not None
            words = np.empty(size, np.uint8)
            self._replies[Task(self._reply(message, status.Get_source(), words))] = size
        return len(self._replies) > before

    def _reply(self, message: MPI.Message, reader: int, words: U8) -> Coroutine[None]:
        """Receive a request into ``words`` and send the rows, as many chunks at a time as the other replies allow."""
        yield message.Irecv([words, MPI.BYTE])
        self._traffic.received(words.nbytes)
        if len(words) < _HEADER:
            get_logger().error("rank %d sent a request of %d bytes for rows", reader, len(words))
            return
        number, count, width, tag, row_bytes = words[:_HEADER].view(np.int64).tolist()
        if not REQUEST < tag < _TAGS:
            get_logger().error("rank %d wants a reply with tag %d", reader, tag)
            return
        id_bytes = count * width
        ends = _rows_at(id_bytes) + count * row_bytes if row_bytes else id_bytes
        rows = self._rows_of(number, count, width, words[_HEADER:][:id_bytes])
        if rows is None or ends != len(words) - _HEADER:
            yield self._send(_REFUSAL, reader, tag)
            return
        if row_bytes:
            stored = yield from self._stored(number, rows, words[_HEADER + _rows_at(id_bytes) :], row_bytes)
            yield self._send(_STORED if stored else _REFUSAL, reader, tag)
            return
        sends: deque[MPI.Request] = deque()  # each keeps its chunk alive
        for begin in range(0, len(rows), step := _rows_per_chunk(len(rows), self._windows[number].row_bytes)):
            table = self._table(number)
            if table is None:  # closed meanwhile
                sends.append(self._send(_REFUSAL, reader, tag))
                break
            some = rows[begin : begin + step].astype(np.int64)
            chunk = _chunk(self._pool, len(some), table)
            gather_rows(table, some, np.arange(len(some)), chunk)
            sends.append(self._send(chunk, reader, tag))
            # a chunk a step, so that other replies have their turn in between
            full = len(sends) >= _chunks_in_flight(len(self._replies))
            yield sends.popleft() if full else MPI.REQUEST_NULL
        while sends:  # not "yield from": a deque has no method "send", which the engine resumes a coroutine by
            yield sends.popleft()

    def _stored(self, number: int, rows: Array, values: U8, row_bytes: int) -> Coroutine[bool]:
        """Write rows when it is their turn, and return whether the window was still there."""
        window = self._windows.get(number)
        if window is None or window.row_bytes != row_bytes:
            return False
        mutex = window.mutex
        ticket = mutex.draw(self._host)
        while mutex.ahead(self._host, ticket):
            yield MPI.REQUEST_NULL
        table = self._table(number)
        if table is not None:
            words = values.view(table.dtype).reshape(len(rows), table.shape[1])
            scatter_rows(words, np.arange(len(rows)), table, rows.astype(np.int64))
            window.win.Sync()
        mutex.release(self._host, ticket)
        return table is not None

    def _table(self, number: int) -> Array | None:
        window = self._windows.get(number)
        return window.words if window is not None else None

    def _send(self, chunk: Array, reader: int, tag: int) -> MPI.Request:
        self._traffic.sent(chunk.nbytes)
        return self._comm.Isend([_as_bytes(chunk), MPI.BYTE], reader, tag)

    def _rows_of(self, number: int, count: int, width: int, ids: U8) -> Array | None:
        """The rows that a request names; None if it cannot be answered."""
        table = self._table(number)
        if table is None or width not in (4, 8) or len(ids) != count * width:
            return None
        rows = ids.view(np.uint32 if width == 4 else np.int64)
        return rows if not count or 0 <= int(rows.min()) <= int(rows.max()) < len(table) else None
