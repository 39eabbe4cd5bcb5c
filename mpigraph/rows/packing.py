"""The owner's side of the packed transport: answer requests for rows, in pieces, without ever waiting.

A request is one message: window, number of rows, bytes of an id, tag of the reply, then the ids (rows counted from the
owner's first one). The reply is the rows in the order of the ids, in pieces of :data:`PIECE` bytes. A piece of no
bytes says that the request cannot be answered: the window was freed, or the request makes no sense.

Somebody calls :meth:`Owner.poll` again and again: a server in its loop, the progress thread on a rank that also
trains. Each call packs a piece or two; a slow asker only keeps its own few pieces waiting.
"""

from collections import deque
from threading import Lock

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import U8, Array
from mpigraph.kernels.row_ops import gather_rows
from mpigraph.log import get_logger
from mpigraph.mpi.watch import Backoff
from mpigraph.rows.transport import Traffic

__all__ = ["HEADER_WORDS", "PIECE", "REQUEST", "TAGS", "Buffers", "Owner", "depth", "rows_of_a_piece"]


PIECE = 4 << 20  # bytes: packing, sending and placing overlap, and memory stays small
_DEPTH, _ALL = 3, 24  # pieces of one reply under way, and of all replies together
REQUEST = 0  # tag of a request; replies have others
TAGS = 1 << 15  # MPI allows at least this many
HEADER_WORDS = 4  # window, rows, bytes of an id, tag of the reply


def rows_of_a_piece(row_bytes: int) -> int:
    """How many rows travel together."""
    return max(1, PIECE // row_bytes)


def depth(replies: int) -> int:
    """How many pieces of each of some replies are under way at once."""
    return max(1, min(_DEPTH, _ALL // replies))


class Buffers:
    """Memory of pieces, used again and again by one thread at a time."""

    def __init__(self) -> None:
        self._free: list[U8] = []

    def take(self, nbytes: int) -> U8:
        """uint8 of at least ``nbytes``."""
        if PIECE // 4 < nbytes <= PIECE:
            return self._free.pop() if self._free else np.empty(PIECE, np.uint8)
        return np.empty(nbytes, np.uint8)

    def give(self, buffer: U8) -> None:
        """Take a buffer back."""
        if len(buffer) == PIECE and len(self._free) < 4 * _DEPTH:
            self._free.append(buffer)


class _Answer:
    """One request being answered. ``table`` is None if it cannot be."""

    def __init__(self, asker: int, tag: int, number: int, table: Array | None, rows: Array) -> None:
        self.number = number
        self.table = table
        self._to = (asker, tag)
        self._rows = rows
        self._at = 0
        self._sending: deque[tuple[MPI.Request, U8]] = deque()

    def step(self, comm: MPI.Intracomm, buffers: Buffers, traffic: Traffic, most: int) -> bool:
        """Send the next piece if fewer than ``most`` are under way; say whether anything went on."""
        moved = False
        while self._sending and self._sending[0][0].Test():
            buffers.give(self._sending.popleft()[1])
            moved = True
        if self._at < len(self._rows) and len(self._sending) < most:
            piece = self._pack(buffers)
            asker, tag = self._to
            self._sending.append((comm.Isend(piece, asker, tag), piece if piece.base is None else piece.base))
            traffic.sent(piece.nbytes)
            moved = True
        return moved

    def _pack(self, buffers: Buffers) -> U8:
        if self.table is None:
            self._at = len(self._rows)
            return np.empty(0, np.uint8)
        row_bytes = self.table.shape[1] * self.table.itemsize
        rows = self._rows[self._at : self._at + rows_of_a_piece(row_bytes)].astype(np.int64)
        self._at += len(rows)
        piece = buffers.take(len(rows) * row_bytes)[: len(rows) * row_bytes]
        gather_rows(self.table, rows, np.arange(len(rows)), piece.view(self.table.dtype).reshape(len(rows), -1))
        return piece

    @property
    def done(self) -> bool:
        return self._at == len(self._rows) and not self._sending


class Owner:
    """Answers requests for the rows that this rank holds."""

    def __init__(self, comm: MPI.Intracomm, traffic: Traffic) -> None:
        """Answer what comes on ``comm``."""
        self._comm = comm
        self._traffic = traffic
        self._lock = Lock()  # poll() may run in another thread than enter() and forget()
        self._tables: dict[int, Array] = {}
        self._coming: deque[tuple[MPI.Request, int, U8]] = deque()
        self._answers: list[_Answer] = []
        self._buffers = Buffers()
        self._backoff = Backoff(spins=2, longest=1e-4)

    def enter(self, number: int, table: Array) -> None:
        """Answer for a window whose rows here are ``table`` (2-D, rows as words)."""
        with self._lock:
            self._tables[number] = table

    def forget(self, number: int) -> None:
        """Answer no more for a window, whose memory may go now."""
        with self._lock:
            self._tables.pop(number, None)
            for answer in self._answers:
                if answer.number == number:
                    answer.table = None

    def poll(self) -> bool:
        """Go on answering; say whether there is an answer under way. Never waits for long.

        What is under way needs the MPI library to be called often, so the pauses here are short.
        """
        if self._step():
            self._backoff.reset()
            return True
        if self.busy:
            self._backoff.pause()
        return self.busy

    def _step(self) -> bool:
        with self._lock:
            moved = self._accept()
            for answer in self._answers:
                moved |= answer.step(self._comm, self._buffers, self._traffic, depth(len(self._answers)))
            if moved:
                self._answers = [answer for answer in self._answers if not answer.done]
            return moved

    @property
    def busy(self) -> bool:
        """Whether a request or an answer is under way."""
        return bool(self._coming or self._answers)

    def _accept(self) -> bool:
        """Take in the requests that have come. A long one arrives while its sender is elsewhere: never wait for it."""
        moved = False
        status = MPI.Status()
        while (message := self._comm.Improbe(MPI.ANY_SOURCE, REQUEST, status)) is not None:
            words = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._coming.append((message.Irecv([words, MPI.BYTE]), status.Get_source(), words))
        for _ in range(len(self._coming)):
            request, asker, words = self._coming.popleft()
            if not request.Test():
                self._coming.append((request, asker, words))
                continue
            self._traffic.received(words.nbytes)
            self._answers += self._read_request(asker, words)
            moved = True
        return moved

    def _read_request(self, asker: int, words: U8) -> list[_Answer]:
        """The answer to a request, empty if nobody can be answered."""
        if len(words) < 8 * HEADER_WORDS:
            get_logger().error("rank %d sent a request of %d bytes for rows", asker, len(words))
            return []
        number, count, width, tag = words[: 8 * HEADER_WORDS].view(np.int64).tolist()
        if not REQUEST < tag < TAGS:
            get_logger().error("rank %d wants a reply with tag %d", asker, tag)
            return []
        table, nobody = self._tables.get(number), np.zeros(1, np.int64)
        if table is None or width not in (4, 8) or len(words) != 8 * HEADER_WORDS + count * width:
            return [_Answer(asker, tag, number, None, nobody)]
        rows = words[8 * HEADER_WORDS :].view(np.uint32 if width == 4 else np.int64)
        if count and not 0 <= int(rows.min()) <= int(rows.max()) < len(table):
            return [_Answer(asker, tag, number, None, nobody)]
        return [_Answer(asker, tag, number, table, rows)]
