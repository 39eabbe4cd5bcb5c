"""Messages between ranks: requests that single ranks answer, arrays from every rank to every rank, rounds of both.

A request is one message: the tag of its reply, and words. Each has a tag of its own, so several threads of a rank may
ask at once. A :class:`RequestServer` answers on the rank that is asked, whenever a thread there calls ``progress``; a
handler makes the replies. :func:`answering` is the handler for requests with one answer or one error: the asker is a
:class:`Requester`, and the reply is one message or two. The first has the status, the length, and the first
:data:`FIRST` bytes of the answer; the second is the rest.

A round asks all ranks of a communicator at once, in four collective steps::

    Ialltoall(headers)           operation, status, number of request words
    Ialltoallv(request words)    int64
    Ialltoall(answer sizes)      in words; -1 to every rank: answering failed here
    Ialltoallv(answers)          int64

All operations are non-blocking (:mod:`.coroutine`). So a server takes part in the rounds of several channels at once
and sleeps meanwhile, and an asker does its own part of the work while the others make their answers. Blocking MPI calls
would also spin on a core that a rank may share. MPI sees all ranks in each step of a round; Python code only those that
ask something. One thread at a time makes the collective steps of a communicator.
"""

import itertools
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

import numpy as np
from mpi4py import MPI

from mpigraph import errors
from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import ClosedError, CollectiveError, MPIGraphError
from mpigraph.log import get_logger
from mpigraph.mpi.agree import describe, no_way_back
from mpigraph.mpi.coroutine import NOT_YET, Coroutine, Task, finish, run
from mpigraph.mpi.wait import BULK, IN_ROUND, TRANSFER, UNINTERRUPTED, Backoff, Policy, wait
from mpigraph.mpi.world import Trainers, World
from mpigraph.trace import clock, count

Comm: TypeAlias = MPI.Comm
T = TypeVar("T")

OK, FAILED = 0, 1  # status of a request, an answer, or a rank in a round
REQUEST = 0  # tag of a request; replies have others
HEAD = 2  # words before an answer: its status and length
FIRST = 16 << 10  # bytes of an answer in its first message: what MPI libraries send without asking first
TOGETHER = 256 << 10  # bytes of requests from which on a server answers no more of them together
_TAGS = 1 << 15  # MPI allows at least this many
_WORDS = {1: MPI.BYTE, 4: MPI.INT32_T, 8: MPI.INT64_T}


class NotOpenHere(CollectiveError):
    """The object of a request is not open on this rank, or not yet: an owner may leave a collective call last."""


class Gate:
    """A ``with`` block for users of an object that is closed one day; reentrant, for any number of threads."""

    def __init__(self, closed: str) -> None:
        """``closed`` is the text of the error once the gate is shut."""
        self._closed = closed
        self._users: dict[int, int] = {}  # by thread, the blocks that it is in
        self._shut = False
        _gates.add(self)

    def __enter__(self) -> None:
        thread = get_ident()
        self._users[thread] = 1 + self._users.get(thread, 0)
        if self._shut and self._users[thread] == 1:  # after the line above: shut, and then look who is inside
            self.__exit__()
            raise ClosedError(self._closed)

    def __exit__(self, *_: object) -> None:
        thread = get_ident()
        self._users[thread] -= 1
        if not self._users[thread]:
            del self._users[thread]

    def shut(self) -> bool:
        """Refuse new users; return whether other threads are still inside."""
        self._shut = True
        return any(thread != get_ident() for thread in list(self._users))

    def drain(self) -> None:
        """Refuse new users, and wait for those of other threads. Blocking: the caller puts a deadline on it."""
        backoff = Backoff()
        while self.shut():
            backoff.pause(TRANSFER)

    def forget_threads(self) -> None:
        """Forget the users of a forked process's parent: of its threads only this one goes on."""
        self._users = {thread: blocks for thread, blocks in self._users.items() if thread == get_ident()}


def _begin_anew() -> None:
    for gate in list(_gates):
        gate.forget_threads()


_gates: "WeakSet[Gate]" = WeakSet()
os.register_at_fork(after_in_child=_begin_anew)


class Request(NamedTuple):
    """A received request: the rank that asks, the tag of the reply, and its words (int64[n])."""

    asker: int
    tag: int
    words: I64

    @property
    def nbytes(self) -> int:
        """Bytes of the message."""
        return 8 + self.words.nbytes


class RequestServer:
    """Answers the requests that other ranks send to this one, without ever waiting for an asker.

    It receives requests as they come, up to bounds that keep memory small however many ranks ask. The rest wait at
    their senders, and not for ever: an asker posts its receives before it asks, so every request that was received is
    answered independently of others.

    Attributes:
        comm: carries requests and replies.
        lock: held while handlers run, in any thread that calls :meth:`progress`.
        held: bytes of requests and answers in memory.
        tasks: the handlers that have not sent all of their replies.
    """

    def __init__(
        self, comm: MPI.Comm, handler: "Handler", *, max_bytes: int, together: int = 1, max_tasks: float = math.inf
    ) -> None:
        """Answer the requests on ``comm``.

        Args:
            comm: the ranks.
            handler: makes the replies to a list of requests.
            max_bytes: of requests and answers in memory, from which on no more requests are received.
            together: requests that a handler gets at once, at most.
            max_tasks: handlers that run at once, from which on no more requests are received.
        """
        self.comm = comm
        self.lock = Lock()
        self.held = 0
        self._handler = handler
        self._max_bytes = max_bytes
        self._together = together
        self._max_tasks = max_tasks
        self.tasks: list[Task[None]] = []
        self._status = MPI.Status()

    @property
    def outstanding(self) -> bool:
        """True while a request or reply is not complete."""
        return bool(self.tasks)

    def progress(self) -> bool:
        """Advance the replies, answer the requests that have come, and return whether anything moved."""
        with self.lock:
            moved = any([task.advance() for task in self.tasks])
            if moved:
                for task in self.tasks:
                    if task.done:
                        task.result()  # an error ends the job
                self.tasks = [task for task in self.tasks if not task.done]
            return self._take_in() or moved

    def drain(self, world: World, what: str) -> None:
        """Complete all replies, at the end: every asker has asked, and receives its reply."""
        with UNINTERRUPTED, world.watch(what):
            backoff = Backoff()
            while self.progress() or self.outstanding:
                backoff.pause(TRANSFER)

    def handle(self, requests: list[Request]) -> None:
        """Begin to answer requests together."""
        self._begin(self._handle(requests))

    def hand_over(self, requests: list[Request], request: Request) -> None:
        """Take a request out of those of a handler, which calls this, and begin to answer it by itself."""
        requests[:] = [other for other in requests if other is not request]
        self.held -= request.nbytes  # which were counted for all of them, and are counted again
        self.handle([request])

    def _begin(self, steps: Coroutine[None]) -> None:
        task = Task(steps)
        if task.done:
            task.result()
        else:
            self.tasks.append(task)

    def _take_in(self) -> bool:
        """Receive requests within the bounds and begin to answer them together; return whether any had come."""
        batch: list[Request] = []
        left = TOGETHER
        come = False
        while (
            left > 0
            and len(batch) < self._together
            and len(self.tasks) + len(batch) < self._max_tasks
            and self.held + TOGETHER - left < self._max_bytes
        ):
            message = self.comm.Improbe(MPI.ANY_SOURCE, REQUEST, self._status)
            if message is None:
                break
            come = True
            asker, words = self._status.Get_source(), np.empty(self._status.Get_count(MPI.INT64_T), np.int64)
            left -= words.nbytes
            receiving = message.Irecv([words, MPI.INT64_T])
            if not receiving.Test():
                self._begin(self._receive(receiving, asker, words))
            elif (request := _request(asker, words)) is not None:
                batch.append(request)
        if batch:
            self.handle(batch)
        return come

    def _receive(self, receiving: MPI.Request, asker: int, words: I64) -> Coroutine[None]:
        """Wait for a long request, which arrives while its sender is elsewhere, and answer it."""
        self.held += words.nbytes
        yield receiving
        self.held -= words.nbytes
        request = _request(asker, words)
        if request is not None:
            yield from self._handle([request])

    def _handle(self, requests: list[Request]) -> Coroutine[None]:
        self.held += sum(request.nbytes for request in requests)
        yield from self._handler(self, requests)
        self.held -= sum(request.nbytes for request in requests)


Handler = Callable[[RequestServer, list[Request]], Coroutine[None]]
"""Sends the replies to requests that came together, as a coroutine; its errors end the job."""

Answer = Callable[[I64], I64]
"""Makes the answer to the words of a request, behind ``HEAD`` free words. An error means that the request is wrong."""


def sent(to: int, nbytes: int) -> None:
    """Count a message to a rank of the job."""
    count("sent_messages", 1, to)
    count("sent_bytes", nbytes, to)


def received(source: int, nbytes: int) -> None:
    """Count bytes from a rank of the job."""
    count("received_bytes", nbytes, source)


def answered(by: int, begin: float) -> None:
    """Count a request that a rank of the job has answered, and the time since ``begin``, on the clock of spans."""
    count("requests", 1, by)
    count("answered_ns", int(1e9 * (clock() - begin)), by)


def _request(asker: int, words: I64) -> Request | None:
    """Return the request in a message; None if it has no tag for a reply."""
    tag = int(words[0]) if len(words) else -1
    if REQUEST < tag < _TAGS:
        return Request(asker, tag, words[1:])
    get_logger().error("rank %d sent a request of %d words that wants a reply with tag %d", asker, len(words), tag)
    return None


def answering(answer: Answer) -> Handler:
    """Return a handler that sends a request's answer, or the class and text of its error, to a :class:`Requester`.

    It calls ``answer`` again after :class:`NotOpenHere`, while the asker's deadline allows. For servers that give it
    one request at once.
    """

    def handle(server: RequestServer, requests: list[Request]) -> Coroutine[None]:
        (request,) = requests
        status, words = OK, _NO_WORDS
        while not len(words):
            try:
                words = answer(request.words)
            except NotOpenHere:
                yield NOT_YET
            except Exception as error:
                status, words = FAILED, _error_words(error)
        server.held += words.nbytes
        received(request.asker, request.nbytes)
        words[:HEAD] = status, len(words) - HEAD
        sends = []
        for part in (words[: HEAD + FIRST // 8], words[HEAD + FIRST // 8 :]):
            if len(part):
                sent(request.asker, part.nbytes)
                sends.append(server.comm.Isend([part, MPI.INT64_T], request.asker, request.tag))
        yield from complete(sends)
        server.held -= words.nbytes

    return handle


_NO_WORDS = np.empty(0, np.int64)


def complete(sends: Collection[MPI.Request]) -> Coroutine[None]:
    """Complete sends; those of small messages are complete at once."""
    if not MPI.Request.Testall(list(sends)):
        for send in sends:
            if not send.Test():
                yield send


def _error_words(error: Exception) -> I64:
    """Return class and text of an error, padded by spaces, as an answer."""
    text = f"{type(error).__name__}:{describe(error)}".encode(errors="backslashreplace")
    return np.frombuffer(bytearray(8 * HEAD) + text.ljust(-(-len(text) // 8) * 8), np.int64)


class Requester:
    """Asks other ranks on ``comm``, from any thread."""

    def __init__(self, world: World, comm: MPI.Comm) -> None:
        self.comm = comm
        self._world = world
        self._numbers = itertools.count()

    def next_tag(self) -> int:
        """Return the tag of the reply to the next request."""
        return 1 + next(self._numbers) % (_TAGS - 1)

    def finish(
        self,
        what: str,
        requests: Iterable[Coroutine[T]],
        policy: Policy,
        meanwhile: Callable[[], None] | None = None,
        whom: Sequence[int] = (),
    ) -> list[T]:
        """Take the steps of all requests in turn, and return their results. Blocking, with a deadline.

        Args:
            what: names the wait in messages.
            requests: coroutines that post their receives before they ask.
            policy: of the wait.
            meanwhile: the caller's own work, done once all have asked. Its error is raised once all are answered.
            whom: the ranks that are asked, where they are known.
        """
        with self._world.watch(what, whom=whom), no_way_back(self.comm) as aside:  # MPI writes to their memory
            tasks = [Task(steps) for steps in requests]
            if meanwhile is not None:
                aside(meanwhile)
            finish(tasks, policy)
            return [task.result() for task in tasks]

    def ask(self, rank: int, words: I64, doing: str) -> Coroutine[I64]:
        """Ask a rank with an :func:`answering` handler, and return the words of the answer.

        Raises the MPIGraphError that ``rank`` has raised in ``doing``, in the same class.
        """
        tag = self.next_tag()
        reply = np.empty(HEAD + FIRST // 8, np.int64)
        receiving = self.comm.Irecv([reply, MPI.INT64_T], rank, tag)
        message = np.empty(1 + len(words), np.int64)
        message[0] = tag
        message[1:] = words
        begin = clock()
        sent(rank, message.nbytes)
        sending = self.comm.Isend([message, MPI.INT64_T], rank, REQUEST)
        yield receiving
        status, length = reply[:HEAD].tolist()
        answer = reply[HEAD : HEAD + length]
        if length > len(answer):
            first, answer = answer, np.empty(length, np.int64)
            rest = self.comm.Irecv([answer[len(first) :], MPI.INT64_T], rank, tag)
            answer[: len(first)] = first
            yield rest
        answered(rank, begin)
        received(rank, 8 * (HEAD + length))
        yield sending
        if status != OK:
            name, _, text = answer.tobytes().decode().rstrip().partition(":")
            kind: type[MPIGraphError] = getattr(errors, name, CollectiveError)
            raise kind(f"{doing} failed on rank {rank}: {text}")
        return answer


@contextmanager
def _row_type(row_bytes: int) -> Iterator[MPI.Datatype]:
    """Make the datatype of one row: MPI-3 counts are 32-bit, so they count rows."""
    if row_bytes in _WORDS:
        yield _WORDS[row_bytes]
        return
    row = MPI.BYTE.Create_contiguous(row_bytes).Commit()
    try:
        yield row
    finally:
        row.Free()


@collective("comm")
def alltoall(comm: MPI.Comm, rows: Array, going: I64, coming: I64, out: Array | None = None) -> Coroutine[Array]:
    """Send ``going[r]`` consecutive rows to rank r, where each rank knows the numbers that come.

    Args:
        comm: the ranks.
        rows: [n, ...], C-contiguous, with rows of as many bytes on all ranks.
        going: int64[size], below 2**31 each.
        coming: int64[size], the number of rows that come from each rank.
        out: C-contiguous memory for the rows that come; new memory if None.

    Returns:
        The rows that came, those of rank 0 first.
    """
    if out is None:
        out = np.empty((int(coming.sum()), *rows.shape[1:]), rows.dtype)
    row_bytes = rows.dtype.itemsize * math.prod(rows.shape[1:])
    _count_rows(comm, going, coming, row_bytes)
    with _row_type(row_bytes) as row:
        yield comm.Ialltoallv([rows, going, row], [out, coming, row])
    return out


def _count_rows(comm: MPI.Comm, going: I64, coming: I64, row_bytes: int) -> None:
    ranks = comm.ranks if isinstance(comm, Trainers) else range(comm.size)
    for counts, add in ((going, sent), (coming, received)):
        for index in np.flatnonzero(counts).tolist():
            if index != comm.rank:
                add(int(ranks[index]), int(counts[index]) * row_bytes)


@collective("comm")
def exchange_rows(comm: MPI.Comm, rows: Array, counts: I64) -> tuple[Array, I64]:
    """Send ``counts[r]`` consecutive rows to rank r. Blocking.

    Args:
        comm: the ranks.
        rows: [n, columns], C-contiguous, of one dtype and number of columns on all ranks.
        counts: int64[ranks], below 2**31 each.

    Returns:
        The rows received, those of rank 0 first, and the number from each rank.
    """
    coming = np.empty(comm.size, np.int64)
    wait(comm.Ialltoall(counts, coming), IN_ROUND)
    return run(alltoall(comm, rows, counts, coming), BULK), coming


@collective("comm")
def sum_over_ranks(comm: MPI.Comm, values: I64) -> I64:
    """Return the sum of every rank's array (int64, of one shape). Blocking."""
    total = np.empty_like(values)
    wait(comm.Iallreduce(values, total), IN_ROUND)
    return total


class Header:
    """The first step of a round or of a push, begun by construction.

    Attributes:
        request: completes when every rank's header is here.
        operations: int64[size], each rank's operation, once ``request`` is complete.
        statuses: int64[size], each rank's status.
        counts: int64[size], the number of rows or words from each rank.
    """

    @collective("comm")
    def __init__(self, comm: MPI.Comm, operation: int, status: int, counts: I64) -> None:
        """Tell each rank operation, status and the number of rows or words that follow (``counts``: int64[size])."""
        self._sent = np.empty((comm.size, 3), np.int64)
        self._sent[:, 0] = operation
        self._sent[:, 1] = status
        self._sent[:, 2] = counts
        came = np.empty_like(self._sent)
        count("collective_bytes", self._sent.nbytes)
        self.request = comm.Ialltoall(self._sent, came)
        self.operations, self.statuses, self.counts = came.T


class Received:
    """The words that came from every rank: ``counts[r]`` of them from rank r, those of rank 0 first."""

    def __init__(self, words: I64, counts: I64) -> None:
        self.words = words
        self.counts = counts
        self._ends = np.cumsum(counts)

    def of(self, rank: int) -> I64:
        """Return the words of ``rank``, a view."""
        return self.words[self._ends[rank] - self.counts[rank] : self._ends[rank]]

    @property
    def senders(self) -> list[int]:
        """The ranks that sent words, ascending."""
        ranks: list[int] = np.flatnonzero(self.counts).tolist()
        return ranks


def in_rank_order(parts: Mapping[int, I64], size: int) -> tuple[I64, I64]:
    """Return the words for several ranks as one array, in rank order, and int64[size], the number for each rank."""
    counts = np.zeros(size, np.int64)
    if not parts:
        return np.empty(0, np.int64), counts
    ranks = sorted(parts)
    counts[ranks] = [len(parts[rank]) for rank in ranks]
    return np.concatenate([parts[rank] for rank in ranks]), counts


@collective("comm")
def exchange_answers(
    comm: MPI.Comm, answers: Mapping[int, I64] | None, meanwhile: Callable[[], None] | None = None
) -> Coroutine[Received | None]:
    """Send ranks their answers.

    Args:
        comm: the channel.
        answers: ``answers[r]`` goes to rank r, nothing to other ranks; None if answering failed on this rank.
        meanwhile: work to do while the other ranks make their answers; it does not raise.

    Returns:
        The answers received; None on every rank if answering failed on one.
    """
    leaving, sizes = in_rank_order(answers or {}, comm.size)
    if answers is None:
        sizes[:] = -1
    incoming = np.empty(comm.size, np.int64)
    count("collective_bytes", sizes.nbytes)
    request = comm.Ialltoall(sizes, incoming)
    if meanwhile is not None:
        meanwhile()
    yield request
    if (incoming < 0).any():
        return None
    return Received((yield from alltoall(comm, leaving, sizes, incoming)), incoming)
