"""Remote rows by request and reply: the host packs the rows and sends them, or stores them. Needs no window.

The words of a request (``mpi/hosts.py``) are window, number of rows, bytes of an id, then the ids (distinct rows,
counted from the host's first one, 32 bits wide where they fit) up to a whole word. The reply has the rows as they are
stored, in the order of the ids, in equal chunks of one to two :data:`CHUNK` bytes, or in one of less. A request is
refused if the window was closed, or the request is malformed.

A request to write has one chunk of rows behind the ids, up to a whole word. The host holds its lock while it stores
them. The reply is one byte.

The reader sends every remote host one request and puts each chunk into its place while the next ones travel. A host
packs a chunk or two whenever it makes progress, so a slow reader only keeps its own few chunks waiting. Both sides are
coroutines (``mpi/coroutine.py``).
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from mpigraph.arrays import I64, U8, Array
from mpigraph.errors import ClosedError
from mpigraph.kernels.row_ops import move_rows
from mpigraph.mpi.coroutine import NOT_YET, Coroutine, finish
from mpigraph.mpi.hosts import Chunk, Hosts, Kind, Request, as_bytes, complete
from mpigraph.rows.segments import RowPool
from mpigraph.rows.transport import HostMutex, RemoteRows, Transport, Window

# bytes: packing, sending and placing overlap, and memory stays small. The rest is no chunk of its own: UCX sends less
# than 3 MB over TCP in copied fragments, which costs both sides half as much again
CHUNK = 4 << 20
_HEADER = 3  # words: window, rows, bytes of an id
_OF_ONE = 3  # chunks in flight of one reply
_OF_ALL = 24  # and of all replies together
POOLED = 4 * _OF_ONE  # chunks that are kept for the next replies
_ROUSED = 0.5  # seconds for which a host that was roused surely looks often (PATIENCE of mpi/wait.py)
_ID_TYPES: dict[int, npt.DTypeLike] = {4: np.uint32, 8: np.int64}
_STORED = np.ones(1, np.uint8)


def _rows_per_chunk(count: int, row_bytes: int) -> int:
    """Return the rows in each chunk of ``count`` rows; the last has as many or a few less."""
    chunks = max(1, min(count, count * row_bytes // CHUNK))
    return max(1, -(-count // chunks))


def _chunk(pool: RowPool, rows: int, like: Array) -> Array:
    """Return memory for a chunk of rows as those of ``like``; large ones have one size, so any can use them again."""
    nbytes = rows * like.shape[1] * like.itemsize
    if not CHUNK <= nbytes <= 2 * CHUNK:
        return pool.empty((rows, like.shape[1]), like.dtype)
    return pool.empty((2 * CHUNK,), np.uint8)[:nbytes].view(like.dtype).reshape(rows, like.shape[1])


def _chunks_in_flight(replies: int) -> int:
    """Return the chunks of each of several replies that may be outstanding at once."""
    return max(1, min(_OF_ONE, _OF_ALL // replies))


def _message(number: int, rows: I64, values: U8 = _STORED[:0]) -> I64:
    """Return a request for distinct rows, or to write them, behind a free word."""
    width = 4 if int(rows.max()) < 1 << 32 else 8
    id_words = _num_words(width * len(rows))
    message = np.zeros(1 + _HEADER + id_words + _num_words(len(values)), np.int64)
    message[1 : 1 + _HEADER] = number, len(rows), width
    message[1 + _HEADER :].view(_ID_TYPES[width])[: len(rows)] = rows
    message[1 + _HEADER + id_words :].view(np.uint8)[: len(values)] = values
    return message


def _num_words(nbytes: int) -> int:
    return -(-nbytes // 8)


class PackedTransport(Transport):
    """Reads and writes remote rows by asking their hosts, and answers for this rank's rows."""

    name = "packed"
    how = "packed by their host"

    def __init__(self, hosts: Hosts, pool: RowPool, mutex: HostMutex) -> None:
        super().__init__(hosts.world)
        self.hosts = hosts
        self._mutex = mutex
        self._pool = pool
        self._windows: dict[int, Window] = {}
        self._roused: dict[int, float] = {}  # by rank, when it was told last
        hosts.handlers |= {Kind.READ: self._send_rows, Kind.WRITE: self._store_rows}

    def register(self, window: Window) -> None:
        """Answer for a window from now on, if this rank holds rows of it."""
        if window.words is not None:
            with self.hosts.lock:
                self._windows[window.number] = window

    def forget(self, window: Window) -> None:
        """Answer no more for a window, whose memory may be gone when this returns."""
        with self.hosts.lock:
            self._windows.pop(window.number, None)

    def read(self, window: Window, remote: list[RemoteRows], out: Array, meanwhile: Callable[[], None]) -> None:
        """See :class:`~mpigraph.rows.transport.Transport`. The hosts answer when they make progress.

        Raises ClosedError if a host has closed the window.
        """
        most = _chunks_in_flight(len(remote))
        what = f"rows of window {window.number} from rank(s) {', '.join(str(rows.rank) for rows in remote)}"
        requests = [self._fetch(window, rows, out, most) for rows in remote]
        finish(requests, what, meanwhile=meanwhile, asked=[rows.rank for rows in remote])

    def _fetch(self, window: Window, remote: RemoteRows, out: Array, most: int) -> Coroutine[None]:
        """Ask a host for rows in requests of bounded size, ``most`` receives posted at a time."""
        for part in remote.requests():
            chunks = self._chunks(part.positions, _rows_per_chunk(len(part.rows), window.row_bytes), out)
            message = _message(window.number, part.rows)
            here = yield from self.hosts.ask(part.rank, Kind.READ, message, chunks, most)
            _check_answered(here, part.rank, window)

    def _chunks(self, places: I64, step: int, out: Array) -> Iterator[Chunk]:
        """Yield memory for the chunks of a reply: their place in ``out`` if that is one stretch, else of the pool."""
        for begin in range(0, len(places), step):
            at = places[begin : begin + step]
            if at[-1] - at[0] == len(at) - 1:  # places ascend
                yield Chunk(out[at[0] : at[-1] + 1])
            else:
                chunk = _chunk(self._pool, len(at), out)
                yield Chunk(chunk, partial(move_rows, chunk, None, 0, out, at))

    def write(self, window: Window, leaving: list[RemoteRows], values: Array) -> None:
        """Write rows of remote hosts from ``values`` (2-D, whole rows as words); the last of equal rows wins.

        A host holds its lock while it stores them, when it makes progress; they are there when the call returns.

        Raises ClosedError if a host has closed the window.
        """
        what = f"writing rows of window {window.number} of rank(s) {', '.join(str(rows.rank) for rows in leaving)}"
        step = max(1, CHUNK // window.row_bytes)
        asked, stores = [], []
        for remote in (rows.last() for rows in leaving):
            begins = range(0, len(remote.rows), step)
            for lane in range(min(_OF_ONE, len(begins))):  # so many chunks travel at a time
                cuts = [slice(begin, begin + step) for begin in begins[lane::_OF_ONE]]
                asked.append(remote.rank)
                stores.append(self._store(window, remote, values, cuts))
        finish(stores, what, asked=asked)

    def _store(self, window: Window, remote: RemoteRows, values: Array, cuts: Sequence[slice]) -> Coroutine[None]:
        """Have a host store rows, one chunk after the other."""
        for cut in cuts:
            leaving = as_bytes(np.ascontiguousarray(values[remote.positions[cut]]))
            message = _message(window.number, remote.rows[cut], leaving)
            stored = yield from self.hosts.ask(remote.rank, Kind.WRITE, message, iter([Chunk(np.empty(1, np.uint8))]))
            _check_answered(stored, remote.rank, window)

    def rouse(self, ranks: Sequence[int]) -> None:
        """Make hosts look at their messages often for a while, unless they have just been told to.

        Ranks read and write rows in a host's windows only while it looks, where the network needs its help.
        """
        now = time.monotonic()
        for rank in ranks:
            if now - self._roused.get(rank, -math.inf) > _ROUSED:
                self._roused[rank] = now
                self.hosts.tell(rank, Kind.WAKE)

    def _send_rows(self, request: Request) -> Coroutine[None]:
        """Send the rows of a request, as many chunks at a time as the other replies allow."""
        rows, _ = self._rows_of(request.words, writes=False)
        if rows is None:
            yield self.hosts.reply(request)
            return
        number = int(request.words[0])
        sends: deque[MPI.Request] = deque()  # each keeps its chunk alive
        step = _rows_per_chunk(len(rows), self._windows[number].row_bytes)
        for begin in range(0, len(rows), step):
            window = self._windows.get(number)
            if window is None:  # closed meanwhile
                sends.append(self.hosts.reply(request))
                break
            requested = rows[begin : begin + step].astype(np.int64)
            chunk = _chunk(self._pool, len(requested), window.like)
            assert window.words is not None
            move_rows(window.words, requested, 0, chunk, None)
            sends.append(self.hosts.reply(request, chunk))
            if begin + step < len(rows):  # one chunk a step: other replies have their turn in between
                full = len(sends) >= _chunks_in_flight(max(1, len(self.hosts.tasks)))
                yield sends.popleft() if full else MPI.REQUEST_NULL
        yield from complete(sends)

    def _store_rows(self, request: Request) -> Coroutine[None]:
        """Write rows when it is their turn, and tell whether the window was still there."""
        rows, values = self._rows_of(request.words, writes=True)
        if rows is None:
            yield self.hosts.reply(request)
            return
        number, host, mutex = int(request.words[0]), self.world.host_index, self._mutex
        ticket = mutex.draw(host)
        while mutex.ahead(host, ticket):
            yield NOT_YET
        window = self._windows.get(number)
        if window is not None and window.words is not None:
            table = window.words
            leaving = values.view(table.dtype).reshape(len(rows), table.shape[1])
            move_rows(leaving, None, 0, table, rows.astype(np.int64))
            window.win.Sync()
        mutex.release(host, ticket)
        yield self.hosts.reply(request, _STORED if window is not None else _STORED[:0])

    def _rows_of(self, words: I64, writes: bool) -> tuple[Array | None, U8]:
        """Return the rows that a request names, and the bytes to write there; None if it is refused."""
        refused = None, _STORED[:0]
        if len(words) < _HEADER:
            return refused
        number, count, width = words[:_HEADER].tolist()
        window = self._windows.get(number)
        if window is None or window.words is None or width not in _ID_TYPES or count < 1:
            return refused
        id_words, nbytes = _num_words(width * count), count * window.row_bytes * writes
        if len(words) != _HEADER + id_words + _num_words(nbytes):
            return refused
        rows = words[_HEADER:].view(_ID_TYPES[width])[:count]
        if not 0 <= int(rows.min()) <= int(rows.max()) < len(window.words):
            return refused
        return rows, words[_HEADER + id_words :].view(np.uint8)[:nbytes]


def _check_answered(here: bool, rank: int, window: Window) -> None:
    if not here:
        raise ClosedError(f"rank {rank} does not hold these rows of window {window.number}: it was closed")
