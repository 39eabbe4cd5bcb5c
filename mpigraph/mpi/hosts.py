"""Requests to single ranks: a host answers, everyone else asks. One communicator, one table of handlers.

A request is one message of int64 words. The first word has the request's :class:`Kind` and the tag of the reply; each
request has a tag of its own, so several threads of a rank may ask at once. The handler of the kind replies by chunks,
each a message: rows whose sizes the asker knows, which are received in place, or an answer (:func:`answering`). An
answer has one chunk or two: the first has status, length, and the first :data:`FIRST` bytes; the second is the rest.
A chunk of no bytes refuses the request.

An asker posts its receives before it asks. So a host answers every request that it has received without waiting for
other requests, and whatever it does not take in waits at its sender, in no memory of the host.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, U8, Array
from mpigraph.collective import collective
from mpigraph.mpi.agree import from_wire, to_wire
from mpigraph.mpi.coroutine import NOT_YET, Coroutine, Task
from mpigraph.mpi.messages import FAILED, HEAD, OK, NotOpenHere, received, sent
from mpigraph.mpi.wait import UNINTERRUPTED, until
from mpigraph.mpi.world import World


class Kind(IntEnum):
    """The kinds of requests."""

    WAKE = 0  # to look at messages often for a while; no reply
    READ = 1  # rows (rows/packed.py)
    WRITE = 2
    SAMPLE = 3  # neighbours, and whether edges exist (sampling/local.py)
    ROUND = 4  # to begin a round (sampling/exchanges.py); no reply


REQUEST = 0  # MPI's tag of a request; replies have others
FIRST = 16 << 10  # bytes of an answer in its first message: what MPI libraries send without asking first
_TAGS = 1 << 31  # no MPI has more
_MOST_REQUESTS = 64  # answered at once; the others wait at their senders
_MOST_BYTES = 64 << 20  # of these requests and their answers
_AT_ONCE = 4  # requests that are taken in before the replies in progress have their turn
_NO_BYTES = np.empty(0, np.uint8)


class Request(NamedTuple):
    """A received request: the rank that asks, the tag of the reply, and its words behind the first (int64[n])."""

    asker: int
    tag: int
    words: I64


class Chunk(NamedTuple):
    """Memory for a part of a reply, C-contiguous, and the call that puts the part into its place once it is there."""

    memory: Array
    place: Callable[[], None] | None = None


Handler = Callable[[Request], Coroutine[None]]
"""Sends the reply to a request, as a coroutine; its errors end the job."""

Answer = Callable[[I64], I64]
"""Makes the answer to the words of a request, behind ``HEAD`` free words. An error means that the request is wrong."""


class Hosts:
    """Asks hosts, and on a host answers. Closed with the world.

    The thread that calls :meth:`progress` answers: the host thread, or below ``MPI_THREAD_MULTIPLE`` a server's own.

    Attributes:
        world: the job.
        comm: carries requests and replies; ``COMM_NULL`` in a job of one node, where no rank asks.
        handlers: by :class:`Kind`, those of the requests that this rank answers.
        lock: held while handlers run.
        held: bytes of requests and answers in memory.
        tasks: the handlers that have not sent all of their replies.
    """

    @collective("world.comm")
    def __init__(self, world: World) -> None:
        self.world = world
        self.comm = MPI.COMM_NULL if world.all_local else world.dup()
        self.handlers: dict[int, Handler] = {Kind.WAKE: _look}
        self.lock = Lock()
        self.held = 0
        self.tasks: list[Task[None]] = []
        self._numbers = itertools.count()
        # none comes again while its reply is on its way
        self._last_tag = int(world.comm.Get_attr(MPI.TAG_UB) or (1 << 15) - 1)
        self._status = MPI.Status()
        self._told: list[MPI.Request] = []
        self._telling = Lock()  # several threads tell
        if not world.all_local:
            world.at_close(self._close)
            if world.is_host and world.progress is not None:
                world.at_close(world.progress.listen(self))

    def ask(self, rank: int, kind: Kind, words: I64, chunks: Iterator[Chunk], ahead: int = 1) -> Coroutine[bool]:
        """Ask a rank.

        Args:
            rank: the rank.
            kind: the kind of the request.
            words: int64[1 + n], the request behind a free word.
            chunks: memory for the reply, one chunk after the other; advanced while chunks arrive.
            ahead: receives that are posted at a time.

        Returns:
            Whether the reply has come; False if the host refused.
        """
        tag = 1 + next(self._numbers) % self._last_tag
        words[0] = kind * _TAGS + tag
        posted: deque[tuple[MPI.Request, Chunk]] = deque()

        def post() -> None:
            chunk = next(chunks, None)
            if chunk is not None:
                posted.append((self.comm.Irecv(_message(chunk.memory), rank, tag), chunk))

        for _ in range(ahead):
            post()
        sent(rank, words.nbytes)
        sending = self.comm.Isend([words, MPI.INT64_T], rank, REQUEST)
        while posted:
            request, chunk = posted.popleft()
            status = yield request
            nbytes = status.Get_count(MPI.BYTE)
            received(rank, nbytes if nbytes >= 0 else chunk.memory.nbytes)  # undefined above 2 GiB before MPI 4
            if not nbytes:  # and nothing more will come
                for request, _ in posted:
                    request.Cancel()
                    request.Wait()
                yield sending
                return False
            post()  # before this chunk is placed, so that the next ones travel
            if chunk.place is not None:
                chunk.place()
        yield sending
        return True

    def call(self, rank: int, kind: Kind, words: I64, doing: str) -> Coroutine[I64]:
        """Ask a rank whose handler is :func:`answering`, and return the words of the answer.

        Raises the MPIGraphError that ``rank`` has raised in ``doing``, in the same class.
        """
        parts: list[I64] = []
        yield from self.ask(rank, kind, words, _parts_of_answer(parts))
        return result_of(parts[0], parts[-1], rank, doing)

    def tell(self, rank: int, kind: Kind, number: int = 0) -> None:
        """Send a rank a request without a reply."""
        words = np.array([kind * _TAGS, number])
        sent(rank, words.nbytes)
        with self._telling:  # no two threads may test one request
            self._told = [request for request in self._told if not request.Test()]
            self._told.append(self.comm.Issend([words, MPI.INT64_T], rank, REQUEST))  # complete once it was received

    @property
    def outstanding(self) -> bool:
        """True while a reply is not complete."""
        return bool(self.tasks)

    def progress(self) -> bool:
        """Advance the replies, begin to answer some requests that have come, and return whether anything moved."""
        if self.comm == MPI.COMM_NULL:
            return False
        with self.lock:
            moved = any([task.advance() for task in self.tasks])
            if moved:
                for task in self.tasks:
                    if task.done:
                        task.result()  # an error ends the job
                self.tasks = [task for task in self.tasks if not task.done]
            for _ in range(_AT_ONCE):
                if len(self.tasks) >= _MOST_REQUESTS or self.held >= _MOST_BYTES:
                    break
                message = self.comm.Improbe(MPI.ANY_SOURCE, REQUEST, self._status)
                if message is None:
                    break
                moved = True
                words = np.empty(self._status.Get_count(MPI.INT64_T), np.int64)
                task = Task(self._serve(message, self._status.Get_source(), words))
                if task.done:
                    task.result()
                else:
                    self.tasks.append(task)
            return moved

    def _serve(self, message: MPI.Message, asker: int, words: I64) -> Coroutine[None]:
        """Receive a request, and answer it."""
        self.held += words.nbytes
        receiving = message.Irecv([words, MPI.INT64_T])
        if not receiving.Test():  # a long one arrives while its sender is elsewhere
            yield receiving
        received(asker, words.nbytes)
        kind, tag = divmod(int(words[0]), _TAGS)
        while kind not in self.handlers:  # a rank that is ahead asks before this one has what answers
            yield NOT_YET
        yield from self.handlers[kind](Request(asker, tag, words[1:]))
        self.held -= words.nbytes

    def reply(self, request: Request, chunk: Array = _NO_BYTES) -> MPI.Request:
        """Send a chunk of the reply to a request; by default refuse it."""
        sent(request.asker, chunk.nbytes)
        return self.comm.Isend(_message(chunk), request.asker, request.tag)

    def answering(self, answer: Answer) -> Handler:
        """Return a handler that replies with a request's answer, or with the class and text of its error."""

        def handle(request: Request) -> Coroutine[None]:
            words = yield from answer_of(answer, request.words)
            self.held += words.nbytes
            parts = words[: HEAD + FIRST // 8], words[HEAD + FIRST // 8 :]
            yield from complete([self.reply(request, part) for part in parts if len(part)])
            self.held -= words.nbytes

        return handle

    @collective("world.comm")
    def _close(self) -> None:
        """Complete the last replies, and answer ranks that are not here yet: none waits when all are."""
        with UNINTERRUPTED, self.world.watch("sending the last answers"):
            for told in self._told:
                until(told.Test, moves=self.progress)
            until(self.comm.Ibarrier().Test, moves=self.progress)
            until(lambda: not (self.progress() or self.outstanding))


def as_bytes(rows: Array) -> U8:
    """Return the bytes of a C-contiguous array, a view."""
    return rows.reshape(-1).view(np.uint8)


def _message(memory: Array) -> list[Any]:
    """Return a chunk as MPI takes it: MPI-3 counts are 32-bit, and a long answer has more bytes."""
    return [as_bytes(memory), MPI.BYTE if memory.nbytes % 8 else MPI.INT64_T]


def _look(request: Request) -> Coroutine[None]:
    """Do nothing: a host that has received something looks again soon."""
    yield from ()


def _parts_of_answer(parts: list[I64]) -> Iterator[Chunk]:
    """Yield memory for the parts of an answer, and leave there the first part, and where it has two the whole."""
    parts.append(np.empty(HEAD + FIRST // 8, np.int64))
    yield Chunk(parts[0])
    length = HEAD + int(parts[0][1])
    if length > len(parts[0]):
        parts.append(np.empty(length, np.int64))
        parts[1][: len(parts[0])] = parts[0]
        yield Chunk(parts[1][len(parts[0]) :])


def answer_of(answer: Answer, words: I64) -> Coroutine[I64]:
    """Return the answer to the words of a request, or its error, behind a status and a length.

    It calls ``answer`` again after :class:`NotOpenHere`, while the asker's deadline allows.
    """
    while True:
        try:
            status, result = OK, answer(words)
            break
        except NotOpenHere:
            yield NOT_YET
        except Exception as error:
            text = to_wire(error)
            padded = bytearray(8 * HEAD) + text.ljust(-(-len(text) // 8) * 8)
            status, result = FAILED, np.frombuffer(padded, np.int64)
            break
    result[:HEAD] = status, len(result) - HEAD
    return result


def result_of(head: I64, answer: I64, rank: int, doing: str) -> I64:
    """Return the words of an answer of ``rank``, without the status and length in ``head``; raise it if it is an error.

    The error has the class that ``rank`` has raised.
    """
    status, length = head[:HEAD].tolist()
    words = answer[HEAD : HEAD + length]
    if status != OK:
        kind, text = from_wire(words.tobytes().rstrip())
        raise kind(f"{doing} failed on rank {rank}: {text}")
    return words


def complete(sends: Sequence[MPI.Request]) -> Coroutine[None]:
    """Complete sends; those of small messages are complete at once."""
    if not MPI.Request.Testall(list(sends)):
        for send in sends:
            if not send.Test():
                yield send
