"""Far rows by request and reply: the owner packs the wanted rows and sends them.

An asker sends every far owner one request, receives the replies piece by piece, and puts each piece into its place
while the next ones travel. Ids are distinct, and 32 bits wide where they fit; rows travel as they are stored. Owners
answer in ``rows/packing.py``. Each request has a tag of its own, so several threads of a rank may ask at once.
"""

from collections import deque
from collections.abc import Callable
from threading import Lock, local

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from mpigraph.arrays import I64, U8, Array
from mpigraph.errors import ClosedError
from mpigraph.kernels.row_ops import gather_rows
from mpigraph.mpi.watch import Backoff
from mpigraph.rows.packing import REQUEST, TAGS, Buffers, Owner, depth, rows_of_a_piece
from mpigraph.rows.transport import RemoteRows, Target, Traffic, Watch, waves

__all__ = ["Packed"]

_SPARSE = 64  # rows held for each row wanted, above which a table of them is slower than sorting


class _Wanted:
    """The distinct rows of a request, and where they go.

    Attributes:
        rows: int64[m], distinct.
        places: int64[m], the position in ``out`` of each.
        repeats: int64[r], positions of further copies, and ``originals`` int64[r], the positions of the first ones.
    """

    def __init__(self, part: RemoteRows) -> None:
        first = _first_alike(part)
        again = np.flatnonzero(first != np.arange(len(first)))
        self.rows, self.places = part.rows, part.positions
        self.repeats, self.originals = self.places[again], self.places[first[again]]
        if len(again):
            distinct = np.flatnonzero(first == np.arange(len(first)))
            self.rows, self.places = self.rows[distinct], self.places[distinct]

    def message(self, number: int, tag: int) -> U8:
        """The request."""
        dtype: npt.DTypeLike = np.uint32 if int(self.rows.max()) < 1 << 32 else np.int64
        ids = self.rows.astype(dtype)
        header = np.array([number, len(ids), ids.itemsize, tag], np.int64)
        return np.concatenate([header.view(np.uint8), ids.view(np.uint8)])


def _first_alike(part: RemoteRows) -> I64:
    """int64[n]: for each wanted row the index of the first that is the same."""
    count = len(part.rows)
    if part.held > _SPARSE * count:
        _, first, which = np.unique(part.rows, return_index=True, return_inverse=True)
        return first[which]
    table = np.empty(part.held, np.int64)  # only entries that were written are read
    table[part.rows[::-1]] = np.arange(count - 1, -1, -1)
    return table[part.rows]


class _Reply:
    """One request under way, begun by construction, with at most ``most`` receives posted.

    Attributes:
        failed: the owner could not answer.
    """

    def __init__(
        self, comm: MPI.Intracomm, target: Target, part: RemoteRows, tag: int, out: Array, buffers: Buffers, most: int
    ) -> None:
        self._comm, self._from, self._out, self._buffers = comm, (part.rank, tag), out, buffers
        self._wanted = _Wanted(part)
        self._row_bytes = target.row_bytes
        self._asked = 0  # rows that a receive was posted for
        self._coming: deque[tuple[MPI.Request, int, Array, U8 | None]] = deque()
        self.failed = False
        self._message = self._wanted.message(target.number, tag)
        self.nbytes = self._message.nbytes
        for _ in range(most):
            self._post()
        self._sending = comm.Isend(self._message, part.rank, REQUEST)

    def _post(self) -> None:
        """Be ready for the next piece: in its place if that is one stretch, else in a buffer."""
        begin = self._asked
        count = min(rows_of_a_piece(self._row_bytes), len(self._wanted.rows) - begin)
        if count <= 0:
            return
        self._asked += count
        first, last = self._wanted.places[begin], self._wanted.places[begin + count - 1]
        buffer = None
        if last - first == count - 1 and len(self._wanted.repeats) == 0:  # places ascend
            piece = self._out[first : last + 1]
        else:
            nbytes = count * self._row_bytes
            buffer = self._buffers.take(nbytes)
            piece = buffer[:nbytes].view(self._out.dtype).reshape(count, -1)
        request = self._comm.Irecv([piece.reshape(-1).view(np.uint8), MPI.BYTE], *self._from)
        self._coming.append((request, begin, piece, buffer))

    def step(self, traffic: Traffic) -> bool:
        """Place the next piece if it is here; say whether it was."""
        status = MPI.Status()
        if not self._coming or not self._coming[0][0].Test(status):
            return False
        _, begin, piece, buffer = self._coming.popleft()
        if status.Get_count(MPI.BYTE) == 0:
            self._give_up()
            return True
        traffic.received(piece.nbytes)
        self._post()
        if buffer is not None:
            places = self._wanted.places[begin : begin + len(piece)]
            gather_rows(piece, np.arange(len(piece)), places, self._out)
            self._buffers.give(buffer)
        return True

    def _give_up(self) -> None:
        """Nothing more will come."""
        self.failed = True
        for request, *_ in self._coming:
            request.Cancel()
            request.Wait()
        self._coming.clear()
        self._asked = len(self._wanted.rows)

    @property
    def done(self) -> bool:
        return not self._coming and self._sending.Test()

    def repeat(self) -> None:
        """Copy rows that were wanted several times."""
        if len(self._wanted.repeats):
            gather_rows(self._out, self._wanted.originals, self._wanted.repeats, self._out)


class Packed:
    """Reads far rows by asking their owners, and answers for the rows of this rank.

    Attributes:
        name: "packed".
        traffic: what was moved so far, asking and answering.
        owner: the side that answers; somebody has to call its ``poll``.
    """

    name = "packed"

    def __init__(self, comm: MPI.Intracomm, watch: Watch) -> None:
        """Use ``comm``, which nobody else does; ``watch(what)`` puts a deadline on a wait."""
        self._comm = comm
        self._watch = watch
        self._lock = Lock()
        self._tag = REQUEST
        self._thread = local()
        self.traffic = Traffic()
        self.owner = Owner(comm, self.traffic)

    def read(self, target: Target, parts: list[RemoteRows], out: Array, meanwhile: Callable[[], None]) -> None:
        """See :class:`~mpigraph.rows.transport.Transport`. The owners answer; nothing is collective.

        Raises:
            ClosedError: an owner has freed the window.

        One-sided; the target does nothing.
        """
        failed: list[int] = []
        for wave in waves(parts):
            ranks = ", ".join(str(part.rank) for part in wave)
            with self._watch(f"rows of window {target.number} from rank(s) {ranks}"):
                replies = [self._ask(target, part, out, depth(len(wave))) for part in wave]
                meanwhile()
                self._receive(replies)
            failed += [part.rank for part, reply in zip(wave, replies, strict=True) if reply.failed]
            meanwhile = _nothing
        if failed:
            raise ClosedError(f"rank {failed[0]} does not hold these rows of window {target.number}: it was closed")

    def _ask(self, target: Target, part: RemoteRows, out: Array, most: int) -> _Reply:
        if not hasattr(self._thread, "buffers"):
            self._thread.buffers = Buffers()
        with self._lock:
            self._tag = self._tag % (TAGS - 1) + 1
            tag = self._tag
        reply = _Reply(self._comm, target, part, tag, out, self._thread.buffers, most)
        self.traffic.sent(reply.nbytes)
        return reply

    def _receive(self, replies: list[_Reply]) -> None:
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

    def close(self) -> None:
        """Send what is still being sent. Every asker must have what it asked for."""
        with self._watch("sending the last rows"):
            while self.owner.poll():
                pass


def _nothing() -> None:
    """What to do while later waves travel."""
