"""Remote rows by request and reply: the host packs the rows and sends them. Needs no window.

The words of a request (``mpi/messages.py``) are window, number of rows, bytes of an id, 0, then the ids (distinct rows,
counted from the host's first one, 32 bits wide where they fit) up to a whole word. The reply has the rows as they are
stored, in the order of the ids, in equal chunks of one to two :data:`CHUNK` bytes, or in one of less. A chunk of no
bytes refuses the request: the window was closed, or the request is malformed. A request for 0 rows is refused, too: it
only makes the host look.

A request to write has the bytes of a row in place of 0, and one chunk of rows behind the ids, up to a whole word. The
host holds its lock while it stores them. The reply is one byte.

The reader sends every remote host one request and puts each chunk into its place while the next ones travel. A host
packs a chunk or two whenever it makes progress, so a slow reader only keeps its own few chunks waiting. Both sides are
coroutines (``mpi/coroutine.py``).
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from mpigraph.arrays import I64, U8, Array
from mpigraph.collective import collective
from mpigraph.errors import ClosedError
from mpigraph.kernels.row_ops import first_alike, move_rows
from mpigraph.mpi.agree import no_way_back
from mpigraph.mpi.coroutine import NOT_YET, Coroutine, Task, finish
from mpigraph.mpi.messages import REQUEST, Request, Requester, RequestServer, answered, complete
from mpigraph.mpi.wait import TRANSFER, UNINTERRUPTED, Backoff
from mpigraph.mpi.world import World
from mpigraph.rows.segments import RowPool
from mpigraph.rows.transport import RemoteRows, Transport, WindowHandle, last_of_equal
from mpigraph.trace import clock

# bytes: packing, sending and placing overlap, and memory stays small. The rest is no chunk of its own: UCX sends less
# than 3 MB over TCP in copied fragments of 64 kB, which costs both sides half as much again
CHUNK = 4 << 20
_HEADER = 4  # words: window, rows, bytes of an id, bytes of a row to write
_OF_ONE = 3  # chunks in flight of one reply
_OF_ALL = 24  # and of all replies together
_MOST_REQUESTS = 64  # answered at once; the others wait at their senders
_MOST_BYTES = 64 << 20  # of the requests that are answered at once
_ROUSED = 0.5  # seconds for which a host that was roused surely looks often (PATIENCE of mpi/wait.py)
_TOGETHER = 64  # requests that are packed together
_SMALL = 64 << 10  # bytes of the reply to one of them: above that, a pass of its own costs next to nothing
_NO_BYTES = np.empty(0, np.uint8)
_ID_TYPES: dict[int, npt.DTypeLike] = {4: np.uint32, 8: np.int64}
_STORED = np.ones(1, np.uint8)
_SPARSE = 64  # rows of the host for each requested row, above which a table of them is slower than sorting


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


def _as_bytes(rows: Array) -> U8:
    return rows.reshape(-1).view(np.uint8)


class _Distinct:
    """The distinct rows of a request, and their places.

    Attributes:
        rows: int64[m], distinct.
        places: int64[m], the position in ``out`` of each.
        repeats: int64[r], positions of further copies, and ``originals`` int64[r], the positions of the first ones.
    """

    def __init__(self, remote: RemoteRows, pool: RowPool) -> None:
        self.rows = remote.rows
        self.places = remote.positions
        first, again = _first_alike(remote, pool)
        self.repeats = self.originals = self.places[:0]
        if again:
            is_first = first == np.arange(len(first))
            self.repeats = self.places[~is_first]
            self.originals = self.places[first[~is_first]]
            self.rows = self.rows[is_first]
            self.places = self.places[is_first]


def _message(number: int, rows: I64, tag: int, values: U8 = _NO_BYTES) -> I64:
    """Return a request for distinct rows, or to write them."""
    width = 4 if int(rows.max()) < 1 << 32 else 8
    id_words = _num_words(width * len(rows))
    message = np.zeros(1 + _HEADER + id_words + _num_words(len(values)), np.int64)
    message[: 1 + _HEADER] = tag, number, len(rows), width, len(values) // len(rows)
    message[1 + _HEADER :].view(_ID_TYPES[width])[: len(rows)] = rows
    message[1 + _HEADER + id_words :].view(np.uint8)[: len(values)] = values
    return message


def _num_words(nbytes: int) -> int:
    return -(-nbytes // 8)


def _first_alike(remote: RemoteRows, pool: RowPool) -> tuple[I64, int]:
    """Return for each row the index of the first equal one (int64[n]), and the number of repeats."""
    count = len(remote.rows)
    if remote.held > _SPARSE * count:
        _, first, which = np.unique(remote.rows, return_index=True, return_inverse=True)
        return first[which], count - len(first)
    indices = np.empty(count, np.int64)
    return indices, first_alike(remote.rows, pool.empty((remote.held,), np.int32), indices)


class PackedTransport(Transport):
    """Reads and writes remote rows by asking their hosts, and answers for this rank's rows through ``server``."""

    name = "packed"
    how = "packed by their host"

    @collective("world.comm")
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._comm = world.dup()
        self._requester = Requester(world, self._comm)
        self._pool = RowPool(kept=4 * _OF_ONE)
        self._windows: dict[int, WindowHandle] = {}
        self._roused: dict[int, float] = {}  # by rank, when it was asked last
        self._rousing: list[Task[None]] = []  # not answered yet
        self.server = RequestServer(
            self._comm, self._answer, max_bytes=_MOST_BYTES, max_tasks=_MOST_REQUESTS, together=_TOGETHER
        )

    def register(self, window: WindowHandle) -> None:
        """Answer for a window from now on, if this rank holds rows of it."""
        if window.words is not None:
            with self.server.lock:
                self._windows[window.number] = window

    def forget(self, window: WindowHandle) -> None:
        """Answer no more for a window."""
        with self.server.lock:
            self._windows.pop(window.number, None)

    def read(self, window: WindowHandle, remote: list[RemoteRows], out: Array, meanwhile: Callable[[], None]) -> None:
        """See :class:`~mpigraph.rows.transport.Transport`. The hosts answer when they make progress.

        Raises ClosedError if a host has closed the window.
        """
        most = _chunks_in_flight(len(remote))
        what = f"rows of window {window.number} from rank(s) {', '.join(str(rows.rank) for rows in remote)}"
        with UNINTERRUPTED, self.world.watch(what), no_way_back(self._comm) as aside:  # MPI writes to their memory
            tasks = [Task(self._fetch_all(window, rows, out, most), str(rows.rank)) for rows in remote]
            aside(meanwhile)
            begin = clock()  # rows that have arrived by now made no thread wait
            for task in tasks:
                task.then(partial(answered, int(task.name), begin))
            finish(tasks, TRANSFER)
        _raise_refused([task.name for task in tasks if not task.result()], window)

    def _fetch_all(self, window: WindowHandle, remote: RemoteRows, out: Array, most: int) -> Coroutine[bool]:
        """Ask a host for rows in requests of bounded size; return whether the host could answer all."""
        here = True
        for request in remote.requests():
            here &= yield from self._fetch(window, request, out, most)
        return here

    def _fetch(self, window: WindowHandle, remote: RemoteRows, out: Array, most: int) -> Coroutine[bool]:
        """Ask a host for rows, ``most`` receives posted at a time; return whether the host could answer."""
        distinct = _Distinct(remote, self._pool)
        tag = self._requester.next_tag()
        step = _rows_per_chunk(len(distinct.rows), window.row_bytes)
        chunks = iter(range(0, len(distinct.rows), step))
        receives: deque[tuple[MPI.Request, int, Array, bool]] = deque()  # first row, chunk, in its place already

        def post() -> None:
            """Receive the next chunk in its place if that is one stretch, else in memory of the pool."""
            begin = next(chunks, None)
            if begin is None:
                return
            places = distinct.places[begin : begin + step]
            in_place = places[-1] - places[0] == len(places) - 1 and len(distinct.repeats) == 0  # places ascend
            chunk = out[places[0] : places[-1] + 1] if in_place else _chunk(self._pool, len(places), out)
            receives.append((self._comm.Irecv([_as_bytes(chunk), MPI.BYTE], remote.rank, tag), begin, chunk, in_place))

        for _ in range(most):
            post()
        message = _message(window.number, distinct.rows, tag)
        self.traffic.sent(remote.rank, message.nbytes)
        sending = self._comm.Isend(message, remote.rank, REQUEST)
        while receives:
            request, begin, chunk, in_place = receives.popleft()
            status = yield request
            if status.Get_count(MPI.BYTE) == 0:  # and nothing more will come
                for request, *_ in receives:
                    request.Cancel()
                    request.Wait()
                yield sending
                return False
            self.traffic.received(remote.rank, chunk.nbytes)
            post()  # before this chunk is placed, so that the next ones travel
            if not in_place:
                move_rows(chunk, None, 0, out, distinct.places[begin : begin + len(chunk)])
        yield sending
        if len(distinct.repeats):
            move_rows(out, distinct.originals, 0, out, distinct.repeats)
        return True

    def write(self, window: WindowHandle, leaving: list[RemoteRows], values: Array) -> None:
        """Write rows of remote hosts from ``values`` (2-D, whole rows as words); the last of equal rows wins.

        A host holds its lock while it stores them, when it makes progress; they are there when the call returns.

        Raises ClosedError if a host has closed the window.
        """
        ranks = ", ".join(str(rows.rank) for rows in leaving)
        what = f"writing rows of window {window.number} of rank(s) {ranks}"
        stores = [self._store(window, rows, values) for rows in leaving]
        stored = self._requester.finish(what, stores, TRANSFER)
        _raise_refused([str(rows.rank) for rows, here in zip(leaving, stored, strict=True) if not here], window)

    def _store(self, window: WindowHandle, leaving: RemoteRows, values: Array) -> Coroutine[bool]:
        """Send a host rows to write, a few chunks at a time; return whether it has stored them all."""
        rows, positions = last_of_equal(leaving)
        step = max(1, CHUNK // window.row_bytes)
        outstanding: deque[tuple[MPI.Request, MPI.Request]] = deque()
        stored = True
        asked = clock()
        for begin in range(0, len(rows), step):
            if len(outstanding) == _OF_ONE:
                stored &= yield from _answered(*outstanding.popleft())
            tag = self._requester.next_tag()
            leaving_rows = np.ascontiguousarray(values[positions[begin : begin + step]])
            message = _message(window.number, rows[begin : begin + step], tag, _as_bytes(leaving_rows))
            answer = self._comm.Irecv(np.empty(1, np.uint8), leaving.rank, tag)
            self.traffic.sent(leaving.rank, message.nbytes)
            outstanding.append((answer, self._comm.Isend(message, leaving.rank, REQUEST)))
        while outstanding:
            stored &= yield from _answered(*outstanding.popleft())
        answered(leaving.rank, asked)
        return stored

    def rouse(self, ranks: Sequence[int]) -> None:
        """Make hosts look at their messages often for a while, unless they have just been asked to.

        Ranks read and write rows in a host's windows only while it looks, where the network needs its help.
        """
        now = time.monotonic()
        asleep = [rank for rank in ranks if now - self._roused.get(rank, -math.inf) > _ROUSED]
        if asleep:
            self._roused.update(dict.fromkeys(asleep, now))
            for task in self._rousing:
                task.advance()
            self._rousing = [task for task in self._rousing if not task.done] + [Task(self._rouse(r)) for r in asleep]

    def _rouse(self, rank: int) -> Coroutine[None]:
        """Ask a host for nothing. No rank waits for the answer: a host in other work may look much later."""
        tag = self._requester.next_tag()
        receiving = self._comm.Irecv([_NO_BYTES, MPI.BYTE], rank, tag)
        message = np.array([tag, *[0] * _HEADER])
        self.traffic.sent(rank, message.nbytes)
        sending = self._comm.Isend([message, MPI.INT64_T], rank, REQUEST)
        yield receiving
        yield sending

    def progress(self) -> bool:
        """Advance the replies to other ranks; return whether anything moved."""
        return self.server.progress()

    @property
    def outstanding(self) -> bool:
        """True while a request or reply is not complete."""
        return self.server.outstanding

    @collective("world.comm")
    def close(self) -> None:
        """Complete the replies; a host may be asked until no rank waits for an answer."""
        backoff = Backoff()
        with self.world.watch("the answers of roused hosts"):
            while not all(task.done for task in self._rousing):
                for task in self._rousing:
                    task.advance()
                self.server.progress()
                backoff.pause(TRANSFER)
            answered_all = self._comm.Ibarrier()
            while not answered_all.Test():
                self.server.progress()
                backoff.pause(TRANSFER)
        self.server.drain(self.world, "sending the last rows")

    def _answer(self, server: RequestServer, requests: list[Request]) -> Coroutine[None]:
        """Answer requests: those for few rows of a window in one pass, any other by itself."""
        if len(requests) == 1:
            yield from self._answer_one(server, requests[0])
            return
        alike: dict[int, list[tuple[Request, Array]]] = {}
        for request in tuple(requests):
            rows, values = self._rows_of(request.words)
            if rows is None or len(values) or not self._fits(int(request.words[0]), len(rows)):
                server.hand_over(requests, request)
            else:
                alike.setdefault(int(request.words[0]), []).append((request, rows))
        sends: list[MPI.Request] = []
        for number, few in alike.items():
            window = self._windows[number]
            all_rows = np.concatenate([rows for _, rows in few], dtype=np.int64)
            packed = _chunk(self._pool, len(all_rows), window.like)
            window.gather(all_rows, packed)
            begin = 0
            for request, rows in few:
                self.traffic.received(request.asker, request.nbytes)
                sends.append(self._send(packed[begin : begin + len(rows)], request))
                begin += len(rows)
        yield from complete(sends)

    def _fits(self, number: int, count: int) -> bool:
        """Return whether a reply of so many rows of a window may be packed with others."""
        window = self._windows[number]
        return count * window.row_bytes <= _SMALL and count <= _rows_per_chunk(count, window.row_bytes)

    def _answer_one(self, server: RequestServer, request: Request) -> Coroutine[None]:
        """Send the rows of a request, as many chunks at a time as the other replies allow, or store them."""
        words = request.words
        rows, values = self._rows_of(words)
        if rows is None:
            yield self._send(_NO_BYTES, request)
            return
        self.traffic.received(request.asker, request.nbytes)
        number = int(words[0])
        if len(values):
            stored = yield from self._write(number, rows, values)
            yield self._send(_STORED if stored else _NO_BYTES, request)
            return
        sends: deque[MPI.Request] = deque()  # each keeps its chunk alive
        step = _rows_per_chunk(len(rows), self._windows[number].row_bytes)
        for begin in range(0, len(rows), step):
            window = self._windows.get(number)
            if window is None:  # closed meanwhile
                sends.append(self._send(_NO_BYTES, request))
                break
            requested = rows[begin : begin + step].astype(np.int64)
            chunk = _chunk(self._pool, len(requested), window.like)
            window.gather(requested, chunk)
            sends.append(self._send(chunk, request))
            if begin + step < len(rows):  # one chunk a step: other replies have their turn in between
                full = len(sends) >= _chunks_in_flight(max(1, len(server.tasks)))
                yield sends.popleft() if full else MPI.REQUEST_NULL
        yield from complete(sends)

    def _write(self, number: int, rows: Array, values: U8) -> Coroutine[bool]:
        """Write rows when it is their turn, and return whether the window was still there."""
        window, host = self._windows[number], self.world.host_index
        ticket = window.mutex.draw(host)
        while window.mutex.ahead(host, ticket):
            yield NOT_YET
        table = self._table(number)
        if table is not None:
            leaving = values.view(table.dtype).reshape(len(rows), table.shape[1])
            move_rows(leaving, None, 0, table, rows.astype(np.int64))
            window.win.Sync()
        window.mutex.release(host, ticket)
        return table is not None

    def _table(self, number: int) -> Array | None:
        window = self._windows.get(number)
        return window.words if window is not None else None

    def _send(self, chunk: Array, request: Request) -> MPI.Request:
        self.traffic.sent(request.asker, chunk.nbytes)
        return self._comm.Isend([_as_bytes(chunk), MPI.BYTE], request.asker, request.tag)

    def _rows_of(self, words: I64) -> tuple[Array | None, U8]:
        """Return the rows that a request names, and the bytes to write there, if any; None if it is refused."""
        if len(words) < _HEADER:
            return None, _NO_BYTES
        number, count, width, row_bytes = words[:_HEADER].tolist()
        window = self._windows.get(number)
        if window is None or width not in _ID_TYPES or row_bytes not in (0, window.row_bytes):
            return None, _NO_BYTES
        id_words = _num_words(width * count)
        if count < 1 or len(words) != _HEADER + id_words + _num_words(count * row_bytes):
            return None, _NO_BYTES
        rows = words[_HEADER:].view(_ID_TYPES[width])[:count]
        if not 0 <= int(rows.min()) <= int(rows.max()) < window.held:
            return None, _NO_BYTES
        return rows, words[_HEADER + id_words :].view(np.uint8)[: count * row_bytes]


def _raise_refused(failed: list[str], window: WindowHandle) -> None:
    if failed:
        raise ClosedError(f"rank {failed[0]} does not hold these rows of window {window.number}: it was closed")


def _answered(answer: MPI.Request, sending: MPI.Request) -> Coroutine[bool]:
    """Wait for the answer to a request to write, and return whether the host has stored the rows."""
    status = yield answer
    stored = status.Get_count(MPI.BYTE) == len(_STORED)
    yield sending
    return stored
